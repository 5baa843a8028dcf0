"""Tables as spreadsheet programs of all languages write them: the bytes become text, and the text rows.

A person need not know how theirs separates columns or writes letters and numbers, as long as it is certain.
"""

import csv
import io
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.request import SETTINGS
from diffusers_helper.setting import check_names, number_or_text

_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # begin the files of Excel, LibreOffice and Numbers
_UNCERTAIN = "cp949"  # Korean, in whose encoding a few words of Chinese look like Korean
_SIGNS = "[\xa0-¿×÷‘-„†-•…‰‹›€™–—№]"
_LATIN = rf"{_SIGNS}{{0,3}}[À-ÖØ-öø-þŒœŠšŽžŸ]{{1,2}}{_SIGNS}{{0,3}}"
_LIKE_UTF_8 = rf"[ÂÃ]{_SIGNS}|â€"  # in cp1252
_WIDE = "\u3000-〕！-～"
# What words with letters beyond ASCII look like in the encodings of Windows without Unicode, of which the
# first that fits counts. Libraries that guess encodings are often wrong about the few words of a prompt.
_WORD = re.compile(r"[A-Za-z]?[^\0-\x7f]+[A-Za-z]?")
_ENCODINGS = {
    "cp1252": rf"(?!.*(?:{_LIKE_UTF_8}))[A-Za-z]?(?:{_SIGNS}{{1,3}}|{_LATIN})[A-Za-z]?",
    "cp1251": rf"[A-Za-z]?{_SIGNS}+[A-Za-z]?|{_SIGNS}*(?:[А-ЯЁ]?[а-яё]+|[А-ЯЁ]+){_SIGNS}*",
    # Without kana, the words of other encodings may look like it.
    "cp932": rf"[A-Za-z]?[ぁ-ヿ一-龠々{_WIDE}]+[A-Za-z]?",
    _UNCERTAIN: rf"[A-Za-z]?[가-힣{_WIDE}]+[A-Za-z]?",
    "gb2312": rf"[A-Za-z]?[一-龥·‘-”…―{_WIDE}]+[A-Za-z]?",
}
_SEPARATORS = ",;\t"
_NO_SEPARATOR = "\x1f"  # of a table with one column, whose texts may have any sign that people write
_SEPARATOR_LINE = re.compile(r"\s*\"?sep=([^\w\s\"]|\t)", re.IGNORECASE)  # by which Excel knows the separator
# What Excel makes of TRUE and FALSE
_YES, _NO = (
    {"true", "wahr", "vrai", "verdadero", "verdadeiro", "vero", "waar", "sand", "sant", "prawda", "истина"},
    {"false", "falsch", "faux", "falso", "onwaar", "falsk", "falskt", "fałsz", "ложь"},
)

Row = tuple[int, dict[str, Any] | str]
"""The number of a line, and its settings, or else the reason why it has none."""


def decoded(content: bytes, name: str) -> str:
    """Decode a text in UTF-8 or UTF-16, or in the encoding of a Windows of another time."""
    if content.startswith(_WORKBOOKS):
        raise InputError(
            f"{name} is a workbook; expected a text file.", "Save its sheet as CSV UTF-8, and use that file."
        )
    encoding = "utf-8-sig"
    is_marked = content[:2] in (BOM_UTF16_BE, BOM_UTF16_LE)
    if b"\0" in content[:4]:  # UTF-16, where every other byte of the names of settings is 0
        plain = "utf-16-be" if content[:1] == b"\0" else "utf-16-le"
        encoding = "utf-16" if is_marked else plain
    elif not is_marked and not _fits(content, encoding):
        encoding = next((other for other in _ENCODINGS if _fits(content, other)), _UNCERTAIN)
    if encoding == _UNCERTAIN or not _fits(content, encoding):
        problem = f"{name} is in an encoding that is not certain; expected a text file in UTF-8."
        raise InputError(problem, "Save it as CSV UTF-8, or as text in UTF-8.")
    return content.decode(encoding)


def _fits(content: bytes, encoding: str) -> bool:
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        return False
    if encoding not in _ENCODINGS:
        return True
    are_words = all(re.fullmatch(_ENCODINGS[encoding], word) for word in {*_WORD.findall(text)})
    return are_words and (encoding != "cp932" or re.search("[ぁ-ヿ]", text) is not None)


def table_rows(text: str) -> Iterator[Row]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_separator_of(text), strict=True)
    names: list[str] | None = None
    while True:
        line = rows.line_num + 1
        try:
            row = [field.strip() for field in next(rows, list[str]())]
        except csv.Error as error:
            yield line, f"It is not CSV ({error}). Check its quotes; what follows it was not read."
            return
        if line > rows.line_num:
            return
        while row and not row[-1]:
            row.pop()
        if not row or (names is None and row[0].lower().startswith("sep=")):
            continue
        if names is None:
            names = [re.sub(r"[\s-]+", "_", name.lower()) for name in row]
            if problem := _problem_of(names):
                yield line, problem
                return
            continue
        fields = [(name, field) for name, field in zip_longest(names, row, fillvalue="") if field]
        if extra := next((field for name, field in fields if not name), ""):
            expected = f"the first line has {sum(map(bool, names))} names, none for {short_repr(extra)}"
            yield line, f"It has {len(row)} fields, and {expected}. Check its quotes."
        else:
            yield line, {name: _value(name, field) for name, field in fields}


def _separator_of(text: str) -> str:
    """Find the separator, which the first line that is not empty names or has between the names."""
    lines = io.StringIO(text, newline="")
    header = next((line for line in lines if line.strip(f" \r\n{_SEPARATORS}")), text)
    if match := _SEPARATOR_LINE.match(header):
        return match[1]
    separator = max(_SEPARATORS, key=header.count)
    return separator if separator in header else _NO_SEPARATOR


def _problem_of(names: list[str]) -> str:
    duplicates = sorted({name for name in names if name and names.count(name) > 1})
    if duplicates:
        return f"The column {short_repr(duplicates[0])} appears twice. Remove one of them."
    try:
        check_names(filter(None, names), SETTINGS)
    except InputError as error:
        return str(error)
    return ""


def _value(name: str, field: str) -> Any:
    setting, word = SETTINGS[name], field.lower()
    if setting.is_optional and word == "auto":
        return None
    if setting.is_number:
        return _number(field)
    if setting.choices:
        word = "on" if word in _YES else "off" if word in _NO else word
        word = re.sub(r"\b0+(?=\d)|:00$", "", word)  # Excel takes 16:9 for a time of day
    return word if word in setting.choices else field


def _number(field: str) -> int | float | str | None:
    """Parse a number with a decimal point or a decimal comma; the other sign may separate thousands."""
    whole, comma, decimals = field.rpartition(",")
    has_decimal_comma = comma and "." not in decimals
    plain = f"{whole.replace('.', '')}.{decimals}" if has_decimal_comma else field.replace(",", "")
    number = number_or_text(plain)
    return field if isinstance(number, str) else number

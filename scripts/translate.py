"""The catalogues of sentences: found in the sources, translated in `locale`, and written for the programs.

python scripts/translate.py                     # update locale/*.po and the files that programs read
python scripts/translate.py missing de          # what is not yet translated, as one JSON object
python scripts/translate.py take de FILE        # take such an object with translations
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

from babel import Locale
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from app.languages.markup import ATTRIBUTES  # noqa: E402
from app.languages.translation import FOLDER, LANGUAGES, MARKS, PLACEHOLDER  # noqa: E402
from diffusers_helper import __version__  # noqa: E402
from diffusers_helper.events import STAGES  # noqa: E402
from diffusers_helper.finish.finishing import WORDS  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402
from diffusers_helper.request import SETTINGS  # noqa: E402

_LETTERS = re.compile(r"[A-Za-z]{2}")
_MARKUP = re.compile(r"<[a-z/][^>]*>")
# Queries, headers, patterns, programs, names of layers and markup in parts are no sentences.
_CODE = re.compile(
    r"\b(DISTINCT|SELECT|CREATE|UPDATE|INSERT|DELETE|PRAGMA|BEGIN|ORDER|WHERE|JOIN|PARTITION|LEFT|FROM)\b"
    r"|coalesce|instr\(| IN [{(]|\w \|\|\w|^state, |^id, |= ?\?|\(\?|\\[dws]|%\(|%[sd]|%\.\d|\{\w*:"
    r"|<\||<[a-z/]|(^|\s)data-|^data: |\blt-|^[#[.]|textarea|grid-row|prefers-|^(max-)?width: |^0 0|\| --- "
    r"|\w+[._]\w+ \w+[._]\w+|import |^-m |'self'|^pip |-m pip|\$version|^--why|^pre code|^Escape|\[data-"
    r"|^(RX|RTX|PRO|Radeon|NVIDIA|Strix) |^(Bool|Byte|Char|Float|Int|Short|Storage|Untyped)$"
    r"|max-age|filename=|=\(|^\$\w|^(It|Worker)$"
)
_NAME = re.compile(r"`\{?(\w+)\}?`")
_CAPITALISED = re.compile(r"[A-Z][a-z]+(?:…|[.:?])?")
# Calls whose texts nobody but a developer reads
_NOT_SHOWN = {
    "cast",
    "_log",
    "re",
    "ValueError",
    "TypeError",
    "RuntimeError",
    "KeyError",
    "AssertionError",
    "TypeVar",
}
_MOST_VARIANTS = 8
_ERRORS = "diffusers_helper/library_errors.py"  # which also has the words of drivers, all in small letters
# What logs and consoles show as it is
_NOT_READ = tuple(
    f"diffusers_helper/{name}.py"
    for name in ("miopen_fallback", "memory/__init__", "memory/accounting", "memory/store")
)
_SCRIPT_TEXT = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/|'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\.)*)`")
_FURTHER = "locale/texts.txt"
Messages = dict[str, set[str]]


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value for name, value in attrs if value and name in ATTRIBUTES]

    def handle_data(self, data: str) -> None:
        if not self.cdata_elem:
            self.texts.append(" ".join(data.split()))


def _in_markup(markup: str) -> list[str]:
    parser = _Texts()
    parser.feed(markup)
    parser.close()
    return parser.texts


def _name(expression: ast.expr) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(args=[first, *_]) if (name := _name(first)) != "value":
            return name
        case ast.Call(func=function):
            return _name(function)
        case ast.Subscript(value=value):
            return _name(value)
        case _:
            return "value"


def _variants(expression: ast.expr) -> list[str]:
    """List all texts that an expression may have, with placeholders; none if it is no text."""
    match expression:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=body, orelse=other):
            texts = [_variants(body), _variants(other)]
            return [*texts[0], *texts[1]] if all(texts) else []
        case ast.JoinedStr(values=values):
            parts = [_part(value) for value in values]
            if math.prod(map(len, parts)) > _MOST_VARIANTS:
                parts = [part[:1] if len(part) == 1 else ["{value}"] for part in parts]
            return ["".join(combination) for combination in itertools.product(*parts)]
    return []


def _part(value: ast.expr) -> list[str]:
    if isinstance(value, ast.FormattedValue):
        chosen = _variants(value.value) if isinstance(value.value, ast.IfExp) else []
        return chosen or [f"{{{_name(value.value)}}}"]
    return _variants(value)


class _Source(ast.NodeVisitor):
    """The texts of a module, but for documentation, logs and errors of programmers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.nouns: set[str] = set()

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        owner = function.value if isinstance(function, ast.Attribute) else function
        if isinstance(owner, ast.Name) and owner.id in _NOT_SHOWN:
            return
        if isinstance(function, ast.Name) and function.id == "count_text":
            self.nouns.update(_variants(node.args[1]))
        self.generic_visit(node)

    def visit(self, node: ast.AST) -> None:
        """Leave out annotations that are text."""
        for name in ("annotation", "returns"):
            if isinstance(getattr(node, name, None), ast.Constant):
                setattr(node, name, None)
        super().visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.texts += _variants(node)
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.texts.append(node.value)


def _cleaned(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for piece in _in_markup(text) if _MARKUP.search(text) else [text]:
            words = _phrase(_NAME.sub(r"{\1}", piece.replace("{}", "{value}")))
            literal = PLACEHOLDER.sub("", words)
            is_shown = " " in words or _CAPITALISED.fullmatch(words)
            if is_shown and _LETTERS.search(literal) and not _CODE.search(words):
                yield _with_names(words)


def _phrase(text: str) -> str:
    """Take the marks off a text that is added to another one; a sentence keeps its end."""
    words = text.strip().lstrip(MARKS)
    is_part = words != text.strip() or words[:1].islower()
    words = words.rstrip(" ,;:·(")
    return words.removesuffix(")") if "(" not in words else words.removesuffix(".") if is_part else words


def _with_names(text: str) -> str:
    """Number the placeholders of one name, since each has a value of its own."""
    counts: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        counts[match[1]] = counts.get(match[1], 0) + 1
        return f"{{{match[1]}}}" if counts[match[1]] == 1 else f"{{{match[1]}_{counts[match[1]]}}}"

    return PLACEHOLDER.sub(numbered, text)


def _in_script(source: str) -> Iterator[str]:
    for match in _SCRIPT_TEXT.finditer(source):
        text = match[1] or match[2] or ""
        yield from re.findall(r"'([^'\n]*)'", match[2] or "")  # a text within a value of a text
        names = re.sub(r"\$\{([^{}]*)\}", lambda part: f"{{{_last_word(part[1])}}}", text)
        if "\\" not in names and "${" not in names:
            yield names


def _last_word(expression: str) -> str:
    return (re.findall(r"[A-Za-z]+", expression) or ["value"])[-1]


def messages() -> tuple[Messages, set[str], set[str]]:
    """Collect the texts with the files that they are in, those of scripts, and the nouns that are counted."""
    further = (ROOT / _FURTHER).read_text(encoding="utf-8").splitlines()
    texts: Messages = {text: {_FURTHER} for text in further if not text.startswith("#")}
    nouns: set[str] = set()
    of_scripts: set[str] = set()
    for file in sorted(path for folder in ("app", "diffusers_helper") for path in (ROOT / folder).rglob("*")):
        name = file.relative_to(ROOT).as_posix()
        if name in _NOT_READ:
            continue
        if file.suffix == ".py":
            source = _Source()
            source.visit(ast.parse(file.read_text(encoding="utf-8")))
            nouns |= source.nouns
            sentences = list(_cleaned(source.texts))
            if name == _ERRORS:
                sentences = [text for text in sentences if not text.islower() and "{_SIZE}" not in text]
        elif file.suffix == ".html":
            sentences = list(_cleaned(_in_markup(file.read_text(encoding="utf-8"))))
        elif file.suffix == ".js":
            sentences = list(_cleaned(_in_script(file.read_text(encoding="utf-8"))))
            of_scripts.update(sentences)
        else:
            continue
        for text in sentences:
            texts.setdefault(text, set()).add(name)
    for setting in SETTINGS.values():
        texts.setdefault(setting.short_label, {"diffusers_helper/request.py"})
    for stage in STAGES.values():
        texts.setdefault(stage.running, {"diffusers_helper/events.py"})
    for word, facts in WORDS.items():
        text = f"{word} {{value}}" if facts.values else word
        texts.setdefault(text, {"diffusers_helper/finish/finishing.py"})
    demo = find_model("demo")
    of_scripts |= {"{number} s", "{number} min", "{number} MB", "{number} kB"}
    of_scripts |= (words := {word for group in [*demo.vocabulary.values()][:3] for word in group[:3]})
    for text in [*demo.vocabulary, *words, demo.title, *(f"Example: {prompt}" for prompt in demo.examples)]:
        texts[text] = {"assets/demo_model/model.json"}
    return texts, of_scripts, {noun for noun in nouns if not PLACEHOLDER.search(noun)}


def _po(language: str) -> Path:
    return ROOT / "locale" / language / "LC_MESSAGES" / "longtake.po"


def _catalogue(language: str) -> Catalog:
    file = _po(language)
    if not file.exists():
        return Catalog(locale=language, project="Longtake", fuzzy=False)
    with file.open("rb") as stream:
        return read_po(stream, locale=language)


def updated(language: str, texts: Messages, nouns: set[str]) -> Catalog:
    earlier = _catalogue(language)
    catalogue = Catalog(
        locale=language, project="Longtake", version=__version__, fuzzy=False,
        header_comment="# Longtake's texts; scripts/translate.py keeps this file up to date.",
        creation_date=earlier.creation_date, revision_date=earlier.creation_date,
    )  # fmt: skip
    for text in sorted(texts, key=lambda text: (min(texts[text]), text)):
        known = earlier.get(text)
        catalogue.add(text, known.string if known else "", [(file, 0) for file in sorted(texts[text])])
    for noun in sorted(nouns):
        known = earlier.get((f"{{count}} {noun}", f"{{count}} {noun}s"))
        catalogue.add((f"{{count}} {noun}", f"{{count}} {noun}s"), known.string if known else ())
    return catalogue


def contents(language: str, catalogue: Catalog, of_scripts: set[str]) -> dict[str, str]:
    """Give the contents of the files that the programs and the page's scripts read, by their names."""
    texts: dict[str, object] = {}
    for message in catalogue:
        if isinstance(message.id, tuple):
            forms = _forms(language, catalogue, tuple(message.string or ()))
            texts |= dict.fromkeys(message.id, forms) if forms else {}
        elif isinstance(message.id, str) and message.id and message.string:
            texts[message.id] = message.string
    script = {text: texts[text] for text in of_scripts if text in texts}
    files = {f"{language}.json": texts, f"{language}.script.json": script}
    return {
        name: f"{json.dumps(file_texts, ensure_ascii=False, indent=0, sort_keys=True)}\n"
        for name, file_texts in files.items()
    }


def _write(language: str, catalogue: Catalog, of_scripts: set[str]) -> None:
    file = _po(language)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        write_po(stream, catalogue, width=110, omit_header=False, include_lineno=False)
    for name, content in contents(language, catalogue, of_scripts).items():
        (FOLDER / name).write_text(content, encoding="utf-8")


def _forms(language: str, catalogue: Catalog, strings: tuple[str, ...]) -> dict[str, str]:
    """Give a noun's forms by CLDR's categories of numbers, of which gettext has only the order."""
    from gettext import c2py

    if not all(strings):
        return {}
    index_of, locale = c2py(catalogue.plural_expr), Locale.parse(language)
    return {locale.plural_form(number): strings[index_of(number)] for number in range(201)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", default="update", choices=("update", "missing", "take"))
    parser.add_argument("language", nargs="?")
    parser.add_argument("file", nargs="?")
    arguments = parser.parse_args()
    texts, of_scripts, nouns = messages()
    for language in (
        [arguments.language] if arguments.language else [name for name in LANGUAGES if name != "en"]
    ):
        catalogue = updated(language, texts, nouns)
        if arguments.action == "missing":
            missing = {
                message.id[1] if isinstance(message.id, tuple) else message.id: message.locations[0][0]
                if message.locations
                else ""
                for message in catalogue
                if message.id and not all(message.string or [""])
            }
            sys.stdout.write(json.dumps(missing, ensure_ascii=False, indent=0) + "\n")
            continue
        if arguments.action == "take":
            for text, translation in json.loads(Path(arguments.file).read_text(encoding="utf-8")).items():
                _take(catalogue, text, translation)
        _write(language, catalogue, of_scripts)
    return 0


def _take(catalogue: Catalog, text: str, translation: str | list[str]) -> None:
    if isinstance(translation, list):
        noun = text.partition(" ")[2].removesuffix("s")
        message = catalogue.get((f"{{count}} {noun}", f"{{count}} {noun}s"))
        fits = (
            sorted(PLACEHOLDER.findall(translation[0])) == ["count"]
            and len(translation) == catalogue.num_plurals
        )
    else:
        message = catalogue.get(text)
        fits = sorted(PLACEHOLDER.findall(translation)) == sorted(PLACEHOLDER.findall(text))
    if message is None or not fits:
        sys.stderr.write(f"Left out: {text!r}: {translation!r}\n")
        return
    message.string = tuple(translation) if isinstance(translation, list) else translation


if __name__ == "__main__":
    raise SystemExit(main())

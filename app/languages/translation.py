"""Sentences in other languages. English ones stand in the code, and are translated where a person reads them.

A catalogue has each English text as a template, with a placeholder for each value: what a text says is found
again by the template that it fits. Values are translated by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache, reduce
from pathlib import Path
from typing import Any, NamedTuple, cast

from app.languages.markup import translated_markup
from diffusers_helper.machine.terminal import width_of

LANGUAGES = {
    "en": "English", "zh": "简体中文", "ja": "日本語", "de": "Deutsch", "fr": "Français", "ru": "Русский",
}  # fmt: skip
COOKIE = "language"
FOLDER = Path(__file__).parent
AS_WRITTEN = frozenset(("id", "job", "negative_prompt", "prompt"))
"""The names of values in answers that stay as they are."""

PLACEHOLDER = re.compile(r"\{(\w+)\}")
# A value reaches no further than its sentence. Templates of few letters fit much, so their values are short.
_VALUE = r"((?:(?!\. [A-Z0-9“]|\s{2}|\n| · )[\s\S])*?)(?<!\.)"
_SHORT_VALUE = r"((?:(?!\. [A-Z0-9“]|\s{2})[^;:,()·\n])*?)(?<!\.)"
_SINGLE_VALUE = r"(\S+(?: (?:[GMk]B|s|min|h|%))?)"
_WORD_VALUE, _FIRST_VALUE = r"([^\s,;:()]*[^\s,;:().]|)", r"((?:(?!\. [A-Z0-9“]|[,;] |\s{2}| · )[^\n])*?)"
_FEW_LETTERS, _FEWEST_LETTERS = 9, 4
_MOST_PARTS = 9  # that are translated together, with what separates them
_CHOICES, _EITHER = re.compile(r"\S+(?: or \S+)+"), "{first} or {second}"
_COUNTED = re.compile(r"(\d+) (\S.*)", re.DOTALL)
_SENTENCE = re.compile("[ A-Z]")  # all other values are the words of programs
MARKS = ",;:.·)( "
# Numbers with a unit, unlike versions
_DECIMAL = re.compile(r"(?<![\w.])(\d+)\.(\d+)(?= ?(?:[GMk]B|m?s|min|h|%|fps|–|$))")
# From the widest parts of a text to the narrowest
_SEPARATORS = [
    re.compile(pattern)
    for pattern in (
        r"(\n+|\s{2,})", r"(?<=[.!?:])( )(?=[A-Z“{0-9])", "( · )", r"( \(|\))", "(; )", "(: )", "(, )",
    )
]  # fmt: skip


class _Template(NamedTuple):
    literal: str
    pattern: str
    names: Sequence[str]
    translation: str


class Translation:
    """The texts of one language; without a catalogue, as in English, all stay as they are."""

    def __init__(self, language: str, messages: Mapping[str, Any] | None = None) -> None:
        self.language = language
        self._messages = messages if messages is not None else _read(language)
        self.text: Callable[[str], str] = lru_cache(4096)(self._text)
        self.markup: Callable[[str], str] = lru_cache(512)(self._markup)

    @cached_property
    def _locale(self) -> Any:
        from babel import Locale  # English does without it

        return Locale.parse(self.language)

    @cached_property
    def _templates(self) -> list[_Template]:
        templates = [
            _template(text, translation)
            # Of two with an equal longest part, the one with more words around its values says more.
            for text, translation in sorted(self._messages.items(), key=lambda item: -_length(item[0]))
            if PLACEHOLDER.search(text) and isinstance(translation, str)
        ]
        return sorted(templates, key=lambda template: len(template.literal), reverse=True)

    @cached_property
    def script(self) -> str:
        """The catalogue of the page's scripts, as JSON within a document."""
        return (FOLDER / f"{self.language}.script.json").read_text(encoding="utf-8").replace("<", "\\u003c")

    def _text(self, text: str) -> str:
        translation = self._in_parts(text, _SEPARATORS) if self._messages else text
        # The full stop and the space after it, as Chinese and Japanese write them
        return re.sub(r"(?<=[。！？]) ", "", re.sub(r"(?<=[\u3040-\u9fff])\.(?= |$)", "。", translation))

    def _in_parts(self, text: str, separators: Sequence[re.Pattern[str]]) -> str:
        words = text.strip()
        if not words:
            return text
        translation = self._in_marks(words)
        for index, separator in enumerate(separators if translation is None else ()):
            parts = separator.split(words)
            if parts[1:]:
                translation = "".join(self._joined(parts, separators[index:]))
                break
        if translation is None:
            translation = _DECIMAL.sub(rf"\1{self._locale.number_symbols['latn']['decimal']}\2", words)
        return text.replace(words, translation)

    def _joined(self, parts: Sequence[str], separators: Sequence[re.Pattern[str]]) -> Iterator[str]:
        """Translate parts, every other one of which separates two, as many as possible at a time."""
        start = shift = 0
        while start < len(parts):
            ends = range(min(len(parts), start + _MOST_PARTS), start + 1, -2) if start % 2 == 0 else ()
            chunks = ((end, self._in_marks("".join(parts[start:end]))) for end in ends)
            end, translation = next(((end, text) for end, text in chunks if text), (start + 1, None))
            part = parts[start]
            if start % 2 and part[1:] and not part.strip(" "):
                # A column begins where it began, if what is before it leaves it room.
                spaces = max(2, len(part) - shift)
                yield " " * spaces
                shift += spaces - len(part)
            else:
                text = translation or (part if start % 2 else self._in_parts(part, separators))
                yield text
                shift += width_of(text) - len("".join(parts[start:end]))
            start = end

    def _in_marks(self, words: str) -> str | None:
        """Translate a text as it is, without the marks around it, or with a small letter at its start."""
        phrase = words.lstrip(MARKS).rstrip(" ,;:·(")
        parts = list(dict.fromkeys((words, phrase, phrase.rstrip("."))))
        for find in (self._messages.get, self._known):
            for part in parts:
                if translation := find(part):
                    return words.replace(part, translation)
                if part[:1].isupper() and (translation := find(part[0].lower() + part[1:])):
                    return words.replace(part, translation[0].upper() + translation[1:])
                if " " in part and (translation := self._messages.get(part[:1].upper() + part[1:])):
                    return words.replace(part, translation)
            if phrase and (sentence := find(f"{phrase}.")):
                return words.replace(phrase, sentence.rstrip(".。"))
        name, _, rest = phrase.partition(" ")  # of what the rest says something, as "is damaged"
        if (
            name != "It"
            and rest[:1].islower()
            and (translation := self._messages.get(rest) or self._known(rest))
        ):
            return f"{name} {translation}"
        return None

    def _known(self, words: str) -> str | None:
        counted = _COUNTED.fullmatch(words)
        if counted and (forms := self._messages.get(f"{{count}} {counted[2]}")):
            form: str = forms[self._locale.plural_form(int(counted[1]))]
            return form.replace("{count}", counted[1])
        if _CHOICES.fullmatch(words) and (either := self._messages.get(_EITHER)):
            return reduce(lambda all_, choice: either.format(first=all_, second=choice), words.split(" or "))
        for template in self._templates:
            if template.literal in words and (match := _compiled(template.pattern).fullmatch(words)):
                values = dict(zip(template.names, map(self.text, match.groups()), strict=True))
                return template.translation.format_map(values)
        return None

    def _markup(self, markup: str) -> str:
        return translated_markup(markup, self.text)

    def answer(self, value: Any, name: str = "") -> Any:
        """Translate the texts within the content of an answer in JSON."""
        if isinstance(value, str) and name not in AS_WRITTEN and _SENTENCE.search(value):
            return self.markup(value) if "</" in value else self.text(value)
        if isinstance(value, list):
            return [self.answer(item, name) for item in cast(list[Any], value)]
        if isinstance(value, dict):
            return {key: self.answer(item, key) for key, item in cast(dict[str, Any], value).items()}
        return value


def _length(text: str) -> int:
    return len(PLACEHOLDER.sub("", text))


def _template(text: str, translation: str) -> _Template:
    parts = PLACEHOLDER.split(text)
    literals, names = parts[::2], parts[1::2]
    letters = sum(map(str.isalpha, "".join(literals)))
    value = _SINGLE_VALUE if letters < _FEWEST_LETTERS else _SHORT_VALUE if letters < _FEW_LETTERS else _VALUE
    pattern = value.join(map(re.escape, literals))
    # Of two values without a space between them, the first one is a word. The first of a text has no comma.
    pattern = pattern.replace(value + value, _WORD_VALUE + value)
    if value == _VALUE and pattern.startswith(_VALUE):
        pattern = _FIRST_VALUE + pattern.removeprefix(_VALUE)
    return _Template(max(literals, key=len), pattern, names, translation)


# Hundreds of patterns are compiled in half a second, and most of them never fit.
_compiled = cache(re.compile)


def _read(language: str) -> dict[str, Any]:
    file = FOLDER / f"{language}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


@cache
def translation(language: str) -> Translation:
    return Translation(language)


def spoken(environ: Mapping[str, str]) -> Translation:
    """Give the language of a terminal, by the variables of gettext."""
    values = (environ.get(name, "") for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"))
    return translation(negotiated(":".join(values).split(":")))


def negotiated(wanted: Iterable[str]) -> str:
    """Choose the language from names such as `de-AT` or `zh_CN.UTF-8`, the most wanted first."""
    return next((code for name in wanted if (code := name[:2].lower()) in LANGUAGES), "en")

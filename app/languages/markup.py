"""The texts of markup, which is copied with translated ones."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from html.parser import HTMLParser

ATTRIBUTES = (
    "alt", "aria-label", "label", "placeholder", "title",
    "data-hint", "data-many", "data-missing", "data-note", "data-state", "data-words",
)  # fmt: skip
"""The attributes of elements that people read, some of them by rules of styles."""


def translated_markup(markup: str, translate: Callable[[str], str]) -> str:
    parser = _Translator(translate)
    parser.feed(markup)
    parser.close()
    return "".join(parser.pieces)


class _Translator(HTMLParser):
    """A parser that copies markup with translated texts, but for elements with `translate="no"`."""

    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._translate = translate
        self._excluded, self._depth = "", 0  # the element whose content stays, and those of its kind within

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        markup = self.get_starttag_text() or ""
        values = dict(attrs)
        if self._excluded or values.get("translate") == "no":
            self._excluded = self._excluded or tag
            self._depth += tag == self._excluded
        else:
            for name in ATTRIBUTES:
                if value := values.get(name):
                    translation = html.escape(self._translate(value))
                    markup = re.sub(
                        rf'(\s{name})="[^"]*"', lambda match, text=translation: f'{match[1]}="{text}"', markup
                    )
        self.pieces.append(markup)

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag: str) -> None:
        if self._excluded == tag:
            self._depth -= 1
            self._excluded = tag if self._depth else ""
        self.pieces.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            self.pieces.append(data)
        else:
            words = " ".join(data.split())
            translation = words if self._excluded else self._translate(words)
            if translation != words:
                data = data.replace(data.strip(), translation)
            self.pieces.append(html.escape(data, quote=False))

    def handle_decl(self, decl: str) -> None:
        self.pieces.append(f"<!{decl}>")

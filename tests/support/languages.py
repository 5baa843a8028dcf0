"""A language that nobody speaks, by which tests see what of a page is not translated or does not fit."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from app.languages.translation import FOLDER, PLACEHOLDER, Translation
from tests.support import pages, reported_jobs, staged_engine

_LETTERS = str.maketrans(dict(zip("aeiouAEIOU", ("àà", "éé", "î", "öö", "ûû", *"ÀÉÎÖÛ"), strict=True)))
_WIDTHS = (390, 1440, 2560)
NAMES = {
    "AITER", "EasyCache", "FirstBlockCache", "LoRA", "MagCache", "SageAttention", "TaylorSeer", "TeaCache",
}  # fmt: skip
# Paths and files, what a script translates with the value that it is given in its language, and days, which
# the browser writes
_AS_IT_IS = re.compile(
    r"UniPC|Today|Yesterday|\S+/\S+|\S+--\S+|(.*[^.\w])?\w+\.(png|mp4|safetensors)\b.*|\d+ s of about .*"
)
# Remembers each text that a page shows, but for those that users, other programs or the demo model wrote.
# `textsNow` finds those that it shows now.
WATCH = """(() => {
    const ATTRIBUTES = ['title', 'aria-label', 'placeholder'];
    const AS_WRITTEN = 'script, style, template, [translate=no], textarea, code, pre, .lt-language, '
        + '#earlier-prompts option:not([value=""])';
    let texts = new Set();
    window.textsSeen = texts;
    window.textsNow = () => {
        texts = new Set();
        walk(document.body);
        const now = [...texts];
        texts = window.textsSeen;
        return now;
    };
    const look = (text, element) => {
        if (/[A-Za-z]{4}/.test(text || '') && !element?.closest(AS_WRITTEN)) texts.add(text.trim());
    };
    const lookAt = (node) => {
        if (node.nodeType === Node.TEXT_NODE) look(node.data, node.parentElement);
        else for (const name of ATTRIBUTES) look(node.getAttribute(name), node);
    };
    const walk = (root) => {
        if (![Node.TEXT_NODE, Node.ELEMENT_NODE].includes(root.nodeType)) return;
        const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
        for (let node = root; node; node = walker.nextNode()) lookAt(node);
    };
    document.addEventListener('DOMContentLoaded', () => {
        walk(document.body);
        new MutationObserver((changes) => {
            for (const { type, target, addedNodes } of changes) {
                if (type === 'childList') addedNodes.forEach(walk);
                else lookAt(target);
            }
        }).observe(document, {
            subtree: true, childList: true, characterData: true, attributeFilter: ATTRIBUTES,
        });
    });
})()"""


# Puts translations in the place of the texts that are there now.
_TRANSLATE = """(translations) => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const text = node.data.trim();
        if (translations[text]) node.data = node.data.replace(text, () => translations[text]);
    }
}"""
# Elements whose text is wider than they show, but for rows and texts of users that may end in an ellipsis,
# and the page itself if it is wider than the window. What moves may be cut until it is there.
CUT = """async () => {
    const ENDING = '[translate=no], .lt-sr, .lt-remark, .lt-undo, .lt-row-about, .lt-row-first, '
        + '.lt-line-words, .lt-video-card-facts';
    const look = () => {
        const wide = document.documentElement.scrollWidth - window.innerWidth;
        return [...document.querySelectorAll('button, a, label, summary, h1, h2, p, li, th, td, dd, span')]
            .filter((element) => element.checkVisibility() && !element.closest(ENDING))
            .filter((element) => getComputedStyle(element).overflowX !== 'visible')
            .filter((element) => element.scrollWidth > element.clientWidth + 1)
            .map((element) => `${innerWidth}: ${element.className}: ${element.textContent.slice(0, 60)}`)
            .concat(wide > 0 ? [`${innerWidth}: the page is ${wide} pixels too wide`] : []);
    };
    const end = performance.now() + 2000;
    let faults;
    do {
        for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
        faults = look();
    } while (faults.length && performance.now() < end);
    return faults;
}"""


def pseudo(text: str) -> str:
    parts = PLACEHOLDER.split(text)
    words = (f"{{{part}}}" if index % 2 else part.translate(_LETTERS) for index, part in enumerate(parts))
    return f"⟦{''.join(words)}⟧"


@cache
def _pseudo_language() -> Translation:
    messages: dict[str, Any] = json.loads((FOLDER / "fr.json").read_text(encoding="utf-8"))
    for text, translation in messages.items():
        noun = text.removeprefix("{count} ")
        forms = dict.fromkeys(("one", "other", "many"), f"{{count}} ⟦{noun}⟧")
        messages[text] = pseudo(text) if isinstance(translation, str) else forms
    return Translation("fr", messages)


@cache
def _source(module: Path) -> str:
    files = (module, *(Path(support.__file__ or "") for support in (pages, reported_jobs, staged_engine)))
    return "".join(file.read_text(encoding="utf-8") for file in files)


def untranslated(page: Any, module: Path) -> list[str]:
    """List the texts that a page has shown in this module's test and that no catalogue has.

    A text that the test itself brings, such as a prompt, is left out.
    """
    texts = [" ".join(text.split()) for text in page.evaluate("[...window.textsSeen ?? []]")]
    translate, source = _pseudo_language().text, _source(module)
    return [
        text
        for text in texts
        if "⟦" not in translate(text)
        and text not in source
        and text not in NAMES
        and not _AS_IT_IS.fullmatch(text)
    ]


def cut(page: Any) -> list[str]:
    """List what does not fit on a page in windows of three widths if all its texts are longer."""
    texts = page.evaluate("[...window.textsSeen]")
    translate = _pseudo_language().text
    page.evaluate(_TRANSLATE, {text: translate(text) for text in texts})
    faults = list[str]()
    for width in _WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        faults += page.evaluate(CUT)
    return faults

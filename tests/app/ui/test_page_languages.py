"""Tests of the page in other languages, of which one that nobody speaks shows what is not translated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.languages import translation as languages
from scripts import translate
from tests.support.languages import CUT, NAMES, WATCH, pseudo
from tests.support.pages import FIRST, FURTHER, Stand, needs_chromium, open_folds, status

pytestmark = needs_chromium
PROMPT = "the red ball moves right"


@pytest.fixture
def pseudo_french(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a language in the place of French whose texts are accented, longer and in brackets."""
    texts, of_scripts, nouns = translate.messages()
    messages: dict[str, Any] = {text: pseudo(text) for text in texts}
    for noun in nouns:
        forms = {
            "one": f"{{count}} ⟦{noun}⟧",
            "other": f"{{count}} ⟦{noun}s⟧",
            "many": f"{{count}} ⟦{noun}s⟧",
        }
        messages |= {f"{{count}} {noun}": forms, f"{{count}} {noun}s": forms}
    for name, content in (
        ("fr.json", messages),
        ("fr.script.json", {text: messages[text] for text in of_scripts}),
    ):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(languages, "FOLDER", tmp_path)
    languages.translation.cache_clear()
    yield
    languages.translation.cache_clear()


@pytest.mark.parametrize("width", [390, 1440, 2560])
def test_nothing_is_left_in_english_or_cut(
    width: int, browser: Any, stand: Stand, photo: Path, pseudo_french: None
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, locale="fr-CA")
    context.add_init_script(WATCH)
    page = context.new_page()
    page.goto(stand.url)
    page.wait_for_selector("html[data-ready]")
    assert page.locator("html").get_attribute("lang") == "fr"
    left = set[str]()

    def look() -> None:
        left.update(text for text in page.evaluate("textsNow()") if "⟦" not in text)
        assert page.evaluate(CUT) == []

    look()
    open_folds(page)
    page.set_input_files("#set-image input[type=file]", str(photo))
    page.wait_for_selector("#set-image img")
    page.fill("#set-prompt textarea", PROMPT)
    look()
    page.click("#start")
    stand.engine.go(FIRST)
    status(page, state="running")
    look()
    page.fill("#in-seconds", "500")
    page.locator("#in-seconds").press("Tab")
    look()
    stand.engine.go(10 * FURTHER)
    status(page, state="finished")
    look()
    for tab in ("queue", "history", "models"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#panel-{tab}:not([hidden])")
        look()
    context.close()
    assert not left - NAMES - {PROMPT, "Aujourd’hui"}  # which the browser writes

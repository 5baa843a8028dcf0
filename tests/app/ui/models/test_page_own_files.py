"""Tests of a user's own files on the Models tab, in Chromium with a staged engine."""

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.models.added import ADDED_MODELS
from tests.app.ui.test_page_presses import LISTEN, hear
from tests.support.pages import Stand, needs_chromium, strict_window

FILE, SECOND = "diffusion_models/FramePack F1.safetensors", "diffusion_models/other.safetensors"
pytestmark = [*needs_chromium, pytest.mark.usefixtures("weights")]


def open_files(page: Any) -> Any:
    page.get_by_role("tab", name="Models").click()
    page.wait_for_selector(".lt-own[data-state=known]")
    return page.locator(".lt-own")


def test_files_are_inspected_and_become_a_model_on_the_page(page: Any, stand: Stand, weights: Path) -> None:
    own = open_files(page)
    assert own.get_by_label("page.safetensors", exact=True).is_disabled()
    own.get_by_label("Inspect diffusion_models/other.safetensors").click()
    own.get_by_role("row", name="Types bfloat16 100.0 %").wait_for()
    first, second = own.get_by_label(FILE, exact=True), own.get_by_label(SECOND, exact=True)
    second.check()
    assert own.get_by_label("Name").input_value() == "other"
    first.check()
    assert not second.is_checked()  # a part has one file
    own.get_by_text(f"{FILE} replaces {SECOND}, since a model has one file for each part.").wait_for()
    assert own.get_by_label("Name").input_value() == "framepack-f1-2"  # framepack-f1 is taken
    own.get_by_label("All other parts from").select_option("demo")
    own.get_by_label("Name").fill("mine")
    second.check()
    assert own.get_by_label("Name").input_value() == "mine"  # what the user has written stays
    own.get_by_role("button", name="Add model").click()
    page.locator(".lt-model-card[data-model=mine]").wait_for()
    page.wait_for_function("() => document.activeElement?.textContent === 'mine'")
    added = ADDED_MODELS.find("mine")
    assert added.parts["transformer"].path == str(weights / SECOND)
    assert not own.get_by_role("button", name="Add model").is_visible()


def test_an_empty_folder_says_where_files_belong(
    page: Any, stand: Stand, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(tmp_path / "nothing"))
    own = open_files(page)
    own.get_by_text("Put files with weights into the folder “nothing”.").wait_for()
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(weights))
    own.get_by_role("button", name="Look again").click()
    own.get_by_label(FILE, exact=True).wait_for()


def test_a_refusal_stands_at_the_form(browser: Any, stand: Stand) -> None:
    with strict_window(browser, stand, complaints=()) as page:  # Chromium itself reports the refused call
        own = open_files(page)
        own.get_by_label(FILE, exact=True).check()
        own.get_by_label("Name").fill("demo")
        own.get_by_role("button", name="Add model").click()
        own.get_by_text("There is already a model demo. Choose another name.").wait_for()
        assert own.get_by_label(FILE, exact=True).is_checked()


def test_a_press_of_add_is_heard_while_the_server_is_away(browser: Any, stand: Stand) -> None:
    with strict_window(browser, stand, complaints=()) as page:  # Chromium itself reports the lost call
        own = open_files(page)
        own.get_by_label(FILE, exact=True).check()
        page.evaluate(LISTEN)
        hear(page, ("Add model", "models_add", "models .lt-own"))
        hear(page, ("Look again", "models_files", "models .lt-own"))
        assert own.get_by_label(FILE, exact=True).is_checked()
    assert ADDED_MODELS.find("framepack-f1-2") is None

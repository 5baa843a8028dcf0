"""Tests of a user's own files on the Models tab, in Chromium with a staged engine."""

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.models.added import ADDED_MODELS
from tests.app.ui.test_page_presses import LISTEN, hear
from tests.support.pages import Stand, needs_chromium, strict_window

FILE = "diffusion_models/FramePack F1.safetensors"
pytestmark = [*needs_chromium, pytest.mark.usefixtures("weights")]


def open_files(page: Any) -> Any:
    page.get_by_role("tab", name="Models").click()
    page.wait_for_selector(".lt-own[data-state=known]")
    return page.locator(".lt-own")


def test_an_empty_folder_says_where_files_belong(
    page: Any, stand: Stand, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(tmp_path / "nothing"))
    own = open_files(page)
    own.get_by_text("Put files with weights into the folder “nothing”.").wait_for()
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(weights))
    own.get_by_role("button", name="Look again").click()
    own.get_by_label(FILE, exact=True).wait_for()


def test_a_press_of_add_is_heard_while_the_server_is_away(browser: Any, stand: Stand) -> None:
    with strict_window(browser, stand, complaints=()) as page:  # Chromium itself reports the lost call
        own = open_files(page)
        own.get_by_label(FILE, exact=True).check()
        page.evaluate(LISTEN)
        hear(page, ("Add model", "models_add", "models .lt-own"))
        hear(page, ("Look again", "models_files", "models .lt-own"))
        assert own.get_by_label(FILE, exact=True).is_checked()
    assert ADDED_MODELS.find("framepack-f1-2") is None

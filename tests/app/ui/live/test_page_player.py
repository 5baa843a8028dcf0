"""Tests of the player's keys and speed, and of a frame that is taken from it, in Chromium."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.pages import VIDEO, Stand, needs_chromium, start, status

pytestmark = needs_chromium
AT = "document.querySelector('.lt-stage video.lt-top').currentTime"


@pytest.fixture
def finished(page: Any, stand: Stand, photo: Path) -> Any:
    """Return the page with a finished video at rest, whose stage has the focus."""
    stand.engine.go(10_000)
    start(page, photo, seconds=2.4)
    status(page, state="finished")
    page.wait_for_selector('.lt-stage[data-state="video"]')
    # The whole video replaces its first part, and begins to play.
    page.wait_for_function("document.querySelector('.lt-stage video.lt-top').duration > 2.3")
    page.locator(".lt-seek").focus()
    page.evaluate("document.querySelector('.lt-stage video.lt-top').pause()")
    page.keyboard.press("Home")
    page.wait_for_function(f"{AT} === 0")
    return page


def test_a_frame_is_saved_and_becomes_a_picture_of_the_form(finished: Any, tmp_path: Path) -> None:
    page = finished
    for _ in range(15):
        page.keyboard.press(".")
    page.wait_for_function(f"{AT} > 0.49")
    shown = page.evaluate(VIDEO)
    page.locator(".lt-live .lt-still summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    assert download.value.suggested_filename.endswith("-at-0.50-s.png")
    with Image.open(download.value.path()) as picture:
        assert picture.format == "PNG"
        pixels = picture.convert("RGB").resize((8, 8)).tobytes()
    assert sum(pixels) / len(pixels) == pytest.approx((shown["light"] - 255 / 4) * 4 / 3, abs=4)
    for words, name in (("Use as start picture", "image"), ("Use as end picture", "end_image")):
        page.get_by_role("button", name=words).click()
        page.wait_for_function(
            "(name) => document.querySelector(`#set-${name} img`)?.src.includes('-at-0.50-s.png')", arg=name
        )

"""Tests of the fold with which a video is directed while it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.jobs import wait_until
from tests.support.pages import FIRST, Stand, needs_chromium, start, status

pytestmark = needs_chromium


def test_words_are_changed_and_the_video_waits_while_it_is_made(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, seconds=3.6)
    stand.engine.go(FIRST)
    status(page, state="running")
    (job,) = stand.service.jobs()
    page.get_by_text("Direct it").click()
    fold = page.locator(".lt-steer")
    words = fold.get_by_label("What happens next")
    assert words.input_value() == "the red ball moves right"
    fold.get_by_text("New words are used from").wait_for()
    assert fold.get_by_role("button", name="Three takes").is_disabled()
    fold.get_by_label("Wait for me after each section").check()
    page.get_by_text("It waits for you after each section; the device is free meanwhile.").wait_for()
    words.fill("the red ball moves up")
    fold.get_by_role("button", name="Change the words").press("Enter")
    page.get_by_text("What comes next has the new words.").wait_for()
    assert json.loads((job.folder / "wish-change").read_bytes()) == {"prompt": "the red ball moves up"}
    assert (job.folder / "wish-wait").exists()

    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    fold.get_by_label("Wait for me after each section").uncheck()
    wait_until(lambda: not (job.folder / "wish-wait").exists())

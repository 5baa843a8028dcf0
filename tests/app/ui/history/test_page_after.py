"""Tests of what is done with finished videos, in Chromium: they are exported and compared."""

from __future__ import annotations

from typing import Any

from PIL import Image

from tests.app.ui.history.test_page_history import cards, gallery, make
from tests.app.ui.test_accessibility import check, screen
from tests.support.pages import Stand, needs_chromium

__all__ = ["make", "screen"]
pytestmark = needs_chromium
TIMES = "[...document.querySelectorAll('#compare video')].map((video) => video.currentTime)"
IN_STEP = f"(([left, right]) => left > 0.3 && Math.abs(left - right) < 0.1)({TIMES})"


def test_a_finished_video_is_exported_with_its_size_told_before(page: Any, stand: Stand, make: Any) -> None:
    (job,) = make("a ball")
    page.goto(f"{stand.url}#history/{job.id}")
    page.locator(".lt-past-open .lt-export summary").click()
    exact = page.get_by_role("button", name="MP4, H.264")
    exact.wait_for()
    assert "about" not in exact.inner_text()
    assert "about" in page.get_by_role("button", name="GIF").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="GIF").click()
    assert download.value.suggested_filename.endswith(".gif")
    with Image.open(download.value.path()) as shown:
        assert shown.format == "GIF"
        assert shown.n_frames == round(20 * job.frames / 30)  # pyright: ignore[reportAttributeAccessIssue]
    check(page, "exported")


def test_two_videos_play_in_step_under_a_slider_and_the_better_one_stays(
    page: Any, stand: Stand, make: Any
) -> None:
    old, new = make("a ball", "b")
    gallery(page, stand, 2)
    for index in (0, 1):
        page.locator(".lt-video-card").nth(index).hover()
        page.locator(".lt-pick").nth(index).check()
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("dialog").wait_for()
    page.get_by_role("button", name="Play").click()  # a person who wants less motion begins by a press
    page.wait_for_function(IN_STEP)
    page.get_by_role("button", name="Pause").click()
    border = page.get_by_label("Border between left and right")
    border.focus()
    border.press("Home")
    for _ in range(30):
        border.press("ArrowRight")
    right = "getComputedStyle(document.querySelectorAll('#compare video')[1]).clipPath"
    page.wait_for_function(f"{right} === 'inset(0px 0px 0px 30%)'")
    page.get_by_label("Position in the videos").press("Home")
    page.wait_for_function(f"{TIMES}.every((time) => time === 0)")
    check(page, "compared")
    page.get_by_role("button", name="Keep left, remove right").click()
    cards(page, 1)
    assert page.locator(".lt-video-card").get_attribute("data-job") == new.id
    page.get_by_role("button", name="Undo").click()
    cards(page, 2)
    assert stand.service.job(old.id).video

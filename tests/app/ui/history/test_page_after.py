"""Tests of what is done with finished videos, in Chromium: they are exported, compared and finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

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
    page.get_by_role("button", name="MP4, HEVC").click()
    page.get_by_role("button", name="Cancel", exact=True).click()  # which nothing covers
    page.get_by_text("MP4, HEVC was cancelled.").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="PNG frames").click()
    assert download.value.suggested_filename.endswith(".zip")
    with ZipFile(download.value.path()) as archive:
        assert archive.namelist()[-1] == f"{job.frames:05}.png"
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
    page.get_by_label("Time in both videos").press("Home")
    page.wait_for_function(f"{TIMES}.every((time) => time === 0)")
    check(page, "compared")
    page.get_by_role("button", name="Keep left, remove right").click()
    cards(page, 1)
    assert page.locator(".lt-video-card").get_attribute("data-job") == new.id
    page.get_by_role("button", name="Undo").click()
    cards(page, 2)
    assert stand.service.job(old.id).video


def test_a_video_is_finished_as_the_panel_says(page: Any, stand: Stand, make: Any) -> None:
    other, job = make("b", "a ball")
    page.goto(f"{stand.url}#history/{job.id}")
    page.get_by_role("button", name="Finish it").click()
    panel = page.get_by_role("form", name="Finish the video")
    panel.get_by_text("Choose what to change").wait_for()
    panel.get_by_role("combobox", name="Size").select_option("4 times")
    panel.get_by_role("combobox", name="Frames").select_option("60 a second")
    panel.get_by_label("From, in seconds").fill("0.2")
    panel.get_by_role("combobox", name="Join with").select_option(index=2)
    panel.get_by_label("Cross-fade, in frames").fill("6")
    told = panel.get_by_text("frames, ")
    told.wait_for()
    check(page, "finishing")
    panel.get_by_label("From, in seconds").fill("90")
    panel.get_by_text("the video has").wait_for()
    panel.get_by_label("From, in seconds").fill("0.2")
    words = told.inner_text()
    panel.get_by_role("button", name="Make it").click()
    page.get_by_text("The new video is in the queue.").wait_for()
    made = stand.service.jobs()[0]
    assert made.parent == job.id
    assert made.request.finishing
    assert set(made.request.finishing.words.split(",")) == {"trim:0.2-", "join:6", "enlarge:4", "smooth:60"}
    result = made.request.finishing.result
    assert words.startswith(f"{result.width}x{result.height}, {result.frames} frames, ")
    assert Path(made.request.join).read_bytes() == other.video.read_bytes()

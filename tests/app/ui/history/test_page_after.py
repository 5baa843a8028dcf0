"""Tests of what is done with finished videos, in Chromium: they are exported, compared and finished."""

from __future__ import annotations

from typing import Any
from zipfile import ZipFile

from PIL import Image

from tests.app.ui.history.test_page_history import make
from tests.app.ui.test_accessibility import check, screen
from tests.support.pages import Stand, needs_chromium

__all__ = ["make", "screen"]
pytestmark = needs_chromium


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

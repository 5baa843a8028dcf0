"""Tests of what is done with several videos of the history at once, in Chromium."""

import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from PIL import Image

from tests.app.ui.history.test_page_history import cards, gallery, make
from tests.support.pages import Stand, needs_chromium

__all__ = ["make"]
pytestmark = needs_chromium


def test_versions_are_one_card_and_selected_videos_come_as_one_zip_file(
    page: Any, stand: Stand, make: Any, tmp_path: Path
) -> None:
    Image.new("RGB", (240, 426)).save(tmp_path / "upright.png")
    first, upright = make("a ball", mode="forward"), make("upright", image=str(tmp_path / "upright.png"))
    branches = make("b", "c")
    for branch in branches:
        stand.service._store.add_facts(branch.id, parent=first[0].id)
    gallery(page, stand, 2)
    assert len({card.bounding_box()["height"] for card in page.locator(".lt-video-card").all()}) == 1
    page.get_by_role("button", name="3 versions").click()
    cards(page, 4)
    jobs = [*reversed(branches), *first, *upright]
    assert [card.get_attribute("data-job") for card in page.locator(".lt-video-card").all()] == [
        job.id for job in jobs
    ]
    assert page.locator('[data-stacked="true"]').count() == 3
    for index in (1, 3):
        page.locator(".lt-video-card").nth(index).hover()
        page.locator(".lt-pick").nth(index).check()
    page.locator(".lt-picked").get_by_text("2 selected · ").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    with ZipFile(download.value.path()) as archive:
        videos = [archive.read(name) for name in archive.namelist()]
        assert all(re.fullmatch(r"longtake-[a-z]+-[0-9a-f]{4}\.mp4", name) for name in archive.namelist())
    assert videos == [(jobs[index].folder / "video.mp4").read_bytes() for index in (1, 3)]
    page.locator(".lt-pick input").nth(3).press("Delete")
    cards(page, 2)
    assert page.locator(".lt-picked").is_hidden()
    page.get_by_role("button", name="Undo").click()
    cards(page, 4)

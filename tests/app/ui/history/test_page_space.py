"""Tests of what the page says about space, and of the deletion for good, in Chromium."""

from typing import Any

from tests.app.ui.history.test_page_history import cards, gallery, make
from tests.support.pages import Stand, needs_chromium

__all__ = ["make"]
pytestmark = needs_chromium


def test_videos_are_deleted_for_good_where_the_page_says_what_takes_space(
    page: Any, stand: Stand, make: Any
) -> None:
    kept, first, second, third = make("kept", "first", "second", "third")
    gallery(page, stand, 4)
    page.locator(f'.lt-video-card[data-job="{first.id}"] a').focus()
    page.keyboard.press("Delete")
    cards(page, 3)
    page.locator("#undo").get_by_role("button", name="Delete for good").click()
    page.wait_for_selector("#undo", state="hidden")
    trash = stand.outputs / ".longtake" / "trash"
    assert not list(trash.iterdir())
    page.get_by_text("What takes space").click()
    page.wait_for_selector(".lt-space-videos li:nth-child(3)")
    assert page.locator(".lt-space-empty").is_hidden()
    page.locator(f'.lt-video-card[data-job="{second.id}"] a').focus()
    page.keyboard.press("Delete")
    page.get_by_role("button", name="Delete removed videos for good").click()
    page.locator(".lt-space-empty").wait_for(state="hidden")
    assert not list(trash.iterdir())
    assert "those that were removed within a week 0 bytes" in page.locator(".lt-space-say").inner_text()
    button = page.get_by_role("button", name="Delete for good: third")
    button.click()
    assert third.folder.exists()
    page.get_by_role("button", name="Press again to delete it: third").click()
    cards(page, 1)
    page.wait_for_selector(".lt-space-videos li:only-child")
    assert {path.name for path in stand.outputs.glob("[!.]*")} == {kept.id}

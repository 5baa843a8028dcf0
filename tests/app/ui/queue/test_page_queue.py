"""Tests of the Queue tab in Chromium, over an engine that waits for the test."""

from pathlib import Path
from typing import Any

from diffusers_helper.request import GenerationRequest
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import FIRST, Stand, needs_chromium, status, visit

pytestmark = needs_chromium


def add(stand: Stand, photo: Path, *prompts: str, **settings: Any) -> list[str]:
    """Queue jobs, of which the first one begins and waits for the test."""
    settings = {"image": str(photo), "seconds": 2.4, **settings}
    return [stand.service.queue.add(GenerationRequest(prompt=one, **settings)).id for one in prompts]


def row(page: Any, prompt: str) -> Any:
    return page.locator(".lt-row", has=page.get_by_text(prompt, exact=True))


def test_a_phone_shows_the_queue_without_scrolling_sideways(browser: Any, stand: Stand, photo: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    context.set_default_timeout(TIMEOUT * 1000)
    page = context.new_page()
    visit(page, stand)
    add(stand, photo, "a", "the green triangle grows while the camera zooms out " * 3, "c")
    stand.engine.go(FIRST)
    status(page, state="running")
    page.get_by_role("tab", name="Queue, 2 waiting").tap()
    row(page, "c").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for one in page.locator(".lt-queue button:visible").all():
        box = one.bounding_box()
        assert box["height"] >= 36, one.inner_text()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390, one.inner_text()
    box = row(page, "c").bounding_box()
    for part in ("title", "about", "state", "actions"):
        inner = row(page, "c").locator(f".lt-row-{part}").bounding_box()
        assert box["x"] < inner["x"] < inner["x"] + inner["width"] <= box["x"] + box["width"], part
        assert box["y"] < inner["y"] < inner["y"] + inner["height"] <= box["y"] + box["height"], part
    row(page, "c").get_by_text("More").tap()
    page.get_by_role("button", name="Make it the next one: c").tap()
    wait_until(lambda: stand.service.queue.jobs()[1].request.prompt == "c")
    context.close()

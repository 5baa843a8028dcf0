"""Tests of the Queue tab in Chromium, over an engine that waits for the test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.request import GenerationRequest
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import FIRST, Stand, needs_chromium, status, strict_window, visit

pytestmark = needs_chromium
TITLES = "() => [...document.querySelectorAll('.lt-row-title')].map((one) => one.textContent)"


@pytest.fixture
def page(browser: Any, stand: Stand) -> Iterator[Any]:
    """Open the page; fail if it leaves an error in the console."""
    with strict_window(browser, stand) as page:
        yield page


def add(stand: Stand, photo: Path, *prompts: str, **settings: Any) -> list[str]:
    """Queue jobs, of which the first one begins and waits for the test."""
    settings = {"image": str(photo), "seconds": 2.4, **settings}
    return [stand.service.queue.add(GenerationRequest(prompt=one, **settings)).id for one in prompts]


def open_queue(page: Any, *prompts: str) -> None:
    page.get_by_role("tab", name="Queue").click()
    shows(page, *prompts)


def shows(page: Any, *prompts: str) -> None:
    """Wait until the rows are these, in this order, and have their pictures (which a removal takes away)."""
    page.wait_for_function(
        f"(titles) => JSON.stringify(({TITLES})()) === JSON.stringify(titles)", arg=list(prompts)
    )
    page.wait_for_function("[...document.querySelectorAll('.lt-row img')].every(({ complete }) => complete)")


def row(page: Any, prompt: str) -> Any:
    return page.locator(".lt-row", has=page.get_by_text(prompt, exact=True))


def order(stand: Stand) -> str:
    return "".join(job.request.prompt for job in stand.service.queue.jobs())


def settled(page: Any, stand: Stand, expected: str) -> None:
    """Wait until the page and the store agree on an order of one-letter prompts."""
    shows(page, *expected)
    wait_until(lambda: order(stand) == expected)


def middle(page: Any, prompt: str) -> tuple[float, float]:
    """Return the middle of the grip of a row."""
    box = row(page, prompt).locator(".lt-row-grip").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_video_is_dragged_to_another_place(page: Any, stand: Stand, photo: Path) -> None:
    add(stand, photo, *"abcde")
    open_queue(page, *"abcde")

    page.mouse.move(*middle(page, "e"))
    page.mouse.down()
    page.mouse.move(*middle(page, "b"), steps=6)
    assert row(page, "b").evaluate("(one) => getComputedStyle(one).transform") != "none"
    page.mouse.up()
    settled(page, stand, "aebcd")
    # Above the running video there is no place.
    x, y = middle(page, "d")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, 0, steps=6)
    page.mouse.up()
    settled(page, stand, "adebc")
    # The Escape key calls it off.
    page.mouse.move(*middle(page, "c"))
    page.mouse.down()
    page.mouse.move(*middle(page, "e"), steps=3)
    page.keyboard.press("Escape")
    page.mouse.up()
    settled(page, stand, "adebc")


def test_a_long_queue_is_drawn_in_parts(page: Any, stand: Stand, photo: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    add(stand, photo, *(f"video {number}" for number in range(160)))
    page.get_by_role("tab", name="Queue, 159 waiting").click()
    row(page, "video 5").wait_for()
    assert page.locator(".lt-row").count() < 100
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    row(page, "video 159").wait_for()
    assert page.locator(".lt-row").count() < 100
    assert not row(page, "video 5").is_visible()
    page.mouse.move(*middle(page, "video 157"))
    page.mouse.down()
    page.mouse.move(*middle(page, "video 155"), steps=6)
    page.mouse.up()
    last = ["video 154", "video 157", "video 155", "video 156", "video 158", "video 159"]
    wait_until(lambda: [job.request.prompt for job in stand.service.queue.jobs()[-6:]] == last)
    row(page, "video 159").get_by_text("More").click()
    page.get_by_role("button", name="Make it the next one: video 159").click()
    wait_until(lambda: stand.service.queue.jobs(limit=2)[1].request.prompt == "video 159")
    page.evaluate("window.scrollTo(0, 0)")
    row(page, "video 159").locator(".lt-row-state", has_text="Next").wait_for()


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

"""Tests of the page over an evening in Chromium: before the first video, on a phone, with several jobs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import Stand, needs_chromium, strict_window

pytestmark = needs_chromium
# The lower edges of the controls that are not folded, by their ids, and the upper edge of the buttons.
EDGES = """() => {
    const box = (selector) => document.querySelector(selector).getBoundingClientRect();
    const controls = ['#set-image', '#set-prompt', '#set-mode', '#set-seconds', '#length', '#set-model'];
    return [Object.fromEntries(controls.map((id) => [id, box(id).bottom])), box('.lt-go').top];
}"""


@pytest.fixture
def window(browser: Any, stand: Stand) -> Iterator[Any]:
    """Open the page in a window of 1440 by 900; fail if it leaves a warning or an error in the console."""
    with strict_window(browser, stand, ("warning", "error")) as page:
        yield page


def controls_are_in_sight(page: Any) -> bool:
    edges, buttons = page.evaluate(EDGES)
    return all(edge <= buttons for edge in edges.values())


def test_before_the_first_video_the_examples_move_on_the_stage(
    window: Any, stand: Stand, photo: Path
) -> None:
    page = window
    page.wait_for_function("[...document.querySelectorAll('.lt-cards img')].every((one) => one.naturalWidth)")
    cards = page.locator(".lt-cards button").all()
    assert len(cards) == 3
    still, moving = cards[0].locator("img").all()
    assert (still.is_visible(), moving.is_visible()) == (True, False)
    cards[0].hover()
    assert (still.is_visible(), moving.is_visible()) == (False, True)
    stage = page.locator(".lt-offer").bounding_box()
    assert sum(card.bounding_box()["width"] for card in cards) > 0.8 * stage["width"]
    assert page.evaluate("document.documentElement.scrollHeight") <= 900
    assert controls_are_in_sight(page)
    assert not page.locator(".lt-examples").is_visible()
    page.get_by_role("button", name="Start Generation Add a picture or a prompt").wait_for()
    page.get_by_role("button", name="Close").click()
    page.locator(".lt-demo").wait_for(state="hidden")

    page.set_viewport_size({"width": 3840, "height": 2160})
    wide = page.locator(".lt-main").bounding_box()
    assert wide["width"] > 0.95 * 3840
    stage, offered = (page.locator(part).bounding_box() for part in (".lt-offer", ".lt-cards"))
    assert offered["width"] > 0.9 * stage["width"]
    assert offered["y"] + offered["height"] <= stage["y"] + stage["height"] <= 2160
    assert page.evaluate("document.documentElement.scrollHeight") <= 2160
    assert page.locator("#start").bounding_box()["height"] > 60  # text and controls are larger there
    page.set_input_files("input[type=file]", str(photo))
    crop = page.locator(".lt-crop:not([hidden])").bounding_box()
    image = page.locator("#set-image img").bounding_box()
    assert image["y"] - 1 <= crop["y"]
    assert crop["y"] + crop["height"] <= image["y"] + image["height"] + 1
    page.wait_for_selector('#start[data-missing=""]')

    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert not page.locator(".lt-demo").is_visible()

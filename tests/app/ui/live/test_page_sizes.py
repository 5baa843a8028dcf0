"""Tests of the page in Chromium in windows of several sizes, while a video is made and afterwards."""

from pathlib import Path
from typing import Any

from diffusers_helper.request import GenerationRequest
from tests.support.pages import FIRST, Stand, needs_chromium, start, status

pytestmark = needs_chromium
PHONE, DESKTOP = (390, 844), (1440, 900)
TOPS = """() => ['.lt-strip', '.lt-prompt', '.lt-actions'].map((part) =>
    document.querySelector(part).getBoundingClientRect().top + window.scrollY)"""
# Tells whether the lower edges of all that is not folded are above the buttons.
ALL_IN_SIGHT = """() => {
    const box = (selector) => document.querySelector(selector).getBoundingClientRect();
    const parts = ['#set-image', '#set-prompt', '.lt-examples', '#set-mode', '#set-seconds', '#length',
        '#set-model', '#fold-look > summary', '#fold-output > summary', '#fold-memory > summary',
        '.lt-around'];
    return parts.every((part) => box(part).bottom <= box('.lt-go').top);
}"""


# Tells whether the section that is made next is within the strip's window.
NEXT_IN_SIGHT = """() => {
    const strip = document.querySelector('.lt-strip').getBoundingClientRect();
    const cell = document.querySelector('.lt-cell[data-section="1"]')?.getBoundingClientRect();
    return strip.width > 0 && cell?.right <= strip.right + 1 && cell?.left >= strip.left - 1;
}"""


def resize(page: Any, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})


def test_on_a_phone_nothing_moves_from_the_start_to_the_end_of_a_video(
    page: Any, stand: Stand, photo: Path
) -> None:
    resize(page, PHONE)
    start(page, photo, seconds=2.4)
    status(page, state="running")
    stand.engine.go(3)
    status(page, section=1)
    tops = page.evaluate(TOPS)
    for section in (1, 2):
        stand.engine.go(2)
        page.get_by_text(f"Section {section} of 2, step 2 of 2").first.wait_for()
        assert page.evaluate(TOPS) == tops
        stand.engine.go(1)
        page.get_by_text(f"Decoding section {section} of 2").first.wait_for()
        assert page.evaluate(TOPS) == tops
        stand.engine.go(2)


def test_the_strip_opens_at_the_section_that_is_made_next(page: Any, stand: Stand, photo: Path) -> None:
    stand.service.queue.add(GenerationRequest(image=str(photo), seconds=30.0))  # made from end to start
    resize(page, PHONE)
    stand.engine.go(3)
    status(page, section=1)
    page.wait_for_function(NEXT_IN_SIGHT)
    page.goto("about:blank")
    page.goto(f"{stand.url.rstrip('/')}/#queue")
    page.wait_for_selector(".lt-row")
    page.get_by_role("tab", name="Create").click()
    page.wait_for_function(NEXT_IN_SIGHT)


def test_after_the_first_video_all_but_the_folded_parts_are_still_in_sight(
    page: Any, stand: Stand, photo: Path
) -> None:
    resize(page, DESKTOP)
    start(page, photo, seconds=1)
    stand.engine.go(FIRST + 1)
    status(page, state="finished")
    quick = page.locator(".lt-examples")
    page.locator("#earlier-prompts").wait_for()
    assert quick.bounding_box()["height"] < 40
    assert quick.bounding_box()["width"] <= page.locator("#set-prompt").bounding_box()["width"]
    page.wait_for_function(ALL_IN_SIGHT)
    last = quick.locator("button").last
    last.scroll_into_view_if_needed()
    last.click()
    page.wait_for_function(
        "(words) => document.querySelector('#set-prompt textarea').value === words", arg=last.inner_text()
    )

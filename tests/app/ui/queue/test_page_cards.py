"""Tests of the lines for several cards in the Queue tab, and of the stage that shows any running video."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.planning.profiles import CAP_VARIABLE
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import wait_until
from tests.support.pages import Stand, needs_chromium, staged_page, strict_window
from tests.support.staged_engine import StagedEngine

pytestmark = needs_chromium
SHOWN = "prompt => document.querySelector('.lt-status .lt-prompt').textContent === prompt"
SHOTS = os.environ.get("LONGTAKE_TEST_SHOTS")  # a folder for pictures of the page


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Stand]:
    """Serve a page over a small and a large card."""
    with staged_page(
        tmp_path, StagedEngine(**{CAP_VARIABLE: "0.2"}), StagedEngine(**{CAP_VARIABLE: "4"})
    ) as stand:
        yield stand


def add(stand: Stand, photo: Path, prompt: str, **settings: Any) -> str:
    given = {"image": str(photo), "seconds": 2.4, "model": "demo", **settings}
    return stand.service.queue.add(GenerationRequest(prompt=prompt, **given)).id


def line(page: Any, number: int) -> Any:
    return page.locator(".lt-devices li").nth(number)


def says(page: Any, number: int, *texts: str) -> None:
    for text in texts:
        line(page, number).get_by_text(text).wait_for()


def test_each_card_has_a_line_and_can_be_taken_out_of_service(browser: Any, pair: Stand, photo: Path) -> None:
    first, second, third = (add(pair, photo, prompt) for prompt in ("a ball", "a kite", "a boat"))
    add(pair, photo, "a large boat", resolution=1280)
    service = pair.service
    wait_until(lambda: [one.job for one in service.crew.workers] == [first, second])
    with strict_window(browser, pair) as page:
        page.get_by_role("tab", name="Queue").click()
        says(page, 0, "processor 1", "Makes a ball", "3 GB of 0.2 GB")
        says(page, 1, "processor 2", "Makes a kite")
        page.get_by_text("Waits for processor 2 (4 GB): processor 1 has 0.2 GB").wait_for()
        if SHOTS:
            for width, scheme in ((1440, "light"), (390, "dark"), (390, "light"), (1440, "dark")):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=f"{SHOTS}/cards-{width}-{scheme}.png")
            page.set_viewport_size({"width": 1440, "height": 900})
        # By keyboard: the large card is freed, and its video waits for it again or goes to the other card.
        button = line(page, 1).get_by_role("button", name="Pause this card: processor 2")
        button.focus()
        page.keyboard.press("Enter")
        line(page, 1).get_by_text("Out of service", exact=True).wait_for()
        assert service.job(second).state == "queued"
        line(page, 0).get_by_role("button", name="Take out of service: processor 1").click()
        says(page, 0, "Out of service after this video: a ball")
        pair.engines[0].go(1000)
        wait_until(lambda: service.job(first).is_over)
        line(page, 0).get_by_text("Out of service", exact=True).wait_for()
        assert [service.job(job).state for job in (second, third)] == ["queued"] * 2
        line(page, 1).get_by_role("button", name="Put back into service").click()
        says(page, 1, "Makes a kite")
        assert service.job(second).card == "processor 2 (4 GB)"


def test_the_stage_shows_any_running_video(browser: Any, pair: Stand, photo: Path) -> None:
    jobs = [add(pair, photo, prompt) for prompt in ("a ball", "a kite")]
    wait_until(lambda: [one.job for one in pair.service.crew.workers] == jobs)
    with strict_window(browser, pair) as page:
        page.get_by_role("tab", name="Queue").click()
        line(page, 1).get_by_role("button", name="Makes a kite. Watch it.").click()
        page.wait_for_function(SHOWN, arg="a kite")
        pair.engines[1].go(5)
        page.wait_for_function("parseFloat(document.querySelector('.lt-percent').textContent) > 0")
        page.get_by_role("tab", name="Queue").click()
        page.locator(".lt-row", has=page.get_by_text("a ball", exact=True)).get_by_text("More").click()
        page.get_by_role("button", name="Watch it: a ball").click()
        page.wait_for_function(SHOWN, arg="a ball")


def test_one_card_has_no_line(browser: Any, stand: Stand, photo: Path) -> None:
    add(stand, photo, "a ball")
    with strict_window(browser, stand) as page:
        page.get_by_role("tab", name="Queue").click()
        page.get_by_text("1 video").first.wait_for()
        assert page.locator(".lt-devices").is_hidden()

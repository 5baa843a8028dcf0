"""Tests of the strip of sections in Chromium: the form's fields and the prompt say the same, both ways."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.pages import FIRST, FURTHER, Stand, needs_chromium, notice, start, status

pytestmark = needs_chromium
# Returns what each field of the strip holds, or else says.
FIELDS = """() => [...document.querySelectorAll('.lt-sections textarea')]
    .map((one) => one.value || one.placeholder)"""
SMALL = """() => [...document.querySelectorAll('#fold-when :is(textarea, summary, input)')]
    .filter((one) => !one.hidden && one.getBoundingClientRect().height < 44).map((one) => one.outerHTML)"""


def prompt_is(page: Any, text: str) -> None:
    page.wait_for_function("(text) => document.querySelector('#in-prompt').value === text", arg=text)


def fields_are(page: Any, *texts: str) -> None:
    page.wait_for_function(f"(texts) => JSON.stringify(({FIELDS})()) === JSON.stringify(texts)", arg=[*texts])


@pytest.fixture
def strip(page: Any) -> Any:
    page.wait_for_selector("html[data-ready]")
    assert not page.locator(".lt-sections").is_visible()
    page.get_by_text("Say what happens when").click()
    return page.locator(".lt-sections textarea")


def test_a_start_takes_what_the_server_has_not_answered_yet(
    page: Any, stand: Stand, strip: Any, photo: Path
) -> None:
    page.set_input_files("input[type=file]", str(photo))
    page.wait_for_selector('#start[data-missing=""]')
    fields_are(page, "No words", "same as above", "same as above", "same as above")
    page.route("**/api/form_describe", lambda route: route.abort())
    page.get_by_label("Prompt", exact=True).fill("a ball")
    strip.nth(1).fill("early")  # before the server has read the prompt
    strip.nth(3).fill("words")
    page.unroute("**/api/form_describe")
    prompt_is(page, "a ball [1.2s: early] [3.6s: words]")
    page.get_by_label("Prompt", exact=True).fill("a ball")
    fields_are(page, "a ball", "same as above", "same as above", "same as above")
    page.route("**/api/form_describe", lambda route: route.abort())
    strip.nth(1).fill("it grows")
    strip.nth(2).fill("it moves")
    page.locator("#start").click()
    job = status(page, state="running").get_attribute("data-job")
    assert stand.service.job(job).request.prompt == "a ball [1.2s: it grows] [2.4s: it moves]"
    page.unroute("**/api/form_describe")
    prompt_is(page, "a ball [1.2s: it grows] [2.4s: it moves]")
    # Words that do not change within the video are not said of each section.
    start(page, None, prompt="a ball", seconds=1)
    assert notice(page, "Number 2 in the queue").is_visible()
    stand.engine.go(FIRST + 3 * FURTHER + 1)
    status(page, state="finished")
    stand.engine.go(FIRST + 1)
    page.get_by_role("button", name="Show it").click()
    page.wait_for_function("document.querySelectorAll('.lt-cell').length === 1")
    assert page.locator(".lt-cell-words").get_attribute("data-said") == ""


def test_on_a_phone_the_sections_are_stacked(page: Any, strip: Any) -> None:
    page.get_by_label("Prompt", exact=True).fill("a ball [1.2s: it grows] [3.6s-9s: it moves]")
    fields_are(page, "a ball", "it grows", "same as above", "it moves")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(SMALL) == []
    places = [field.bounding_box() for field in strip.all()]
    # What changes nothing stands beside its time.
    assert [place["x"] > places[0]["x"] for place in places] == [False, False, True, False]
    assert all(one["y"] + one["height"] <= other["y"] for one, other in pairwise(places))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_label("Prompt", exact=True).fill("a [3s-2s: b]")
    page.locator("#timeline-note").get_by_text("expected an end after its begin").wait_for()
    assert page.locator(".lt-sections").get_attribute("inert") is not None


def test_a_section_begins_with_a_picture_that_is_moved(
    page: Any, stand: Stand, strip: Any, photo: Path, tmp_path: Path
) -> None:
    page.set_input_files("#file-image", str(photo))
    page.get_by_label("Prompt", exact=True).fill("a ball")
    strip.nth(3).wait_for()
    tiles = page.locator(".lt-placed")
    assert [tile.is_visible() for tile in tiles.all()] == [False, True, True, True]
    tall = tmp_path / "tall.png"
    Image.linear_gradient("L").resize((240, 640)).save(tall)
    with page.expect_file_chooser() as chooser:
        tiles.nth(2).get_by_role("button", name="Choose a picture").click()
    chooser.value.set_files(tall)
    part = page.get_by_role("slider", name="Part of the picture for 2.4 – 3.6 s that the video shows")
    part.wait_for()
    part.focus()
    page.keyboard.press("Home")
    page.wait_for_function("document.querySelector('[name=pictures]').value.startsWith('2.4s@0: uploads/')")
    assert part.evaluate("one => getComputedStyle(one).objectPosition") == "0% 0%"
    page.locator("input[name=mode][value=forward]").check(force=True)
    page.get_by_text("Forward order was not trained for an end picture or pictures at times").wait_for()
    page.get_by_role("button", name="Make the end first").click()
    page.locator("#start").click()
    job = stand.service.job(status(page, state="running").get_attribute("data-job"))
    assert job.request.pictures == f"2.4s@0: {job.folder / 'pictures_1.png'}"
    with Image.open(job.folder / "pictures_1.png") as kept, Image.open(tall) as given:
        assert kept.tobytes() == given.convert("RGB").tobytes()
    page.get_by_role("button", name="Remove the picture for 2.4 – 3.6 s").click()
    page.wait_for_function("document.querySelector('[name=pictures]').value === ''")

"""Tests of the page in Chromium, over an engine that goes on when the test says so."""

from typing import Any

import pytest

from diffusers_helper.errors import InputError
from diffusers_helper.request import SETTINGS, GenerationRequest
from tests.support.pages import (
    Stand,
    choose_model,
    needs_chromium,
    notice,
    open_folds,
    start,
)

pytestmark = needs_chromium


def test_a_start_of_nothing_is_refused_with_the_sentence_of_the_command_line(page: Any, stand: Stand) -> None:
    start(page, None, prompt="")
    with pytest.raises(InputError) as refusal:
        GenerationRequest.from_dict({})
    assert notice(page, "no picture").inner_text() == str(refusal.value)
    assert stand.service.jobs() == []


def test_length_seed_and_model_say_what_they_do_and_nothing_is_wider_than_the_window(page: Any) -> None:
    page.get_by_text("5 s becomes 4.83 s (145 frames, 4 sections).").wait_for()
    page.get_by_label(f"number input for {SETTINGS['seconds'].label}").fill("60")
    page.get_by_text("60 s becomes 60.03 s (1801 frames, 50 sections).").wait_for()
    open_folds(page)
    assert page.locator("#set-mode").get_by_role("radio").count() == 2
    choose_model(page, "FramePack F1")
    page.locator(".lt-demo").wait_for(state="detached")
    page.wait_for_function("document.querySelectorAll('#set-mode input[type=radio]').length === 1")
    assert page.locator("#set-mode input:checked").evaluate("one => one.value") == "forward"
    assert page.get_by_label("number input for Resolution").input_value() == "640"
    assert page.get_by_label("number input for Steps").input_value() == "25"
    page.locator("#lt-model").get_by_text("FramePack F1", exact=True).wait_for()
    for width in (390, 1024, 1440, 3840):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
        box = page.get_by_role("button", name="Start Generation").bounding_box()
        assert box["y"] + box["height"] <= 844, width
    for height, position in ((225, "static"), (844, "fixed")):  # of 1440 by 900 at 400 %, and of a phone
        page.set_viewport_size({"width": 390, "height": height})
        assert page.evaluate("getComputedStyle(document.querySelector('.lt-go')).position") == position

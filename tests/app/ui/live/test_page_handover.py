"""Tests of the stage in Chromium when one job follows another, over an engine that waits for the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.packing import MODES, Mode
from diffusers_helper.request import GenerationRequest
from tests.support.pages import FIRST, Stand, needs_chromium

pytestmark = needs_chromium


@pytest.mark.parametrize("mode", MODES)
def test_a_job_does_not_wait_for_the_video_of_the_one_before(
    page: Any, stand: Stand, photo: Path, mode: Mode
) -> None:
    def submit() -> str:
        request = GenerationRequest(image=str(photo), prompt="the red ball moves right", mode=mode, seconds=1)
        return stand.service.submit(request).id

    first, second = submit(), submit()
    # The first job's video never arrives, as over a slow line.
    page.route(f"**/jobs/{first}/video*", lambda route: None)
    with page.expect_request(f"**/jobs/{first}/video*"):
        stand.engine.go(FIRST)
    stand.engine.go(1 + FIRST)
    # This takes far less than the half minute after which a load counts as failed.
    page.wait_for_selector(f'.lt-stage[data-url*="{second}"][data-swaps="1"]')
    assert page.evaluate("document.querySelector('.lt-stage video.lt-top').readyState") >= 2


def test_no_section_is_marked_as_shown_before_there_is_a_video(page: Any, stand: Stand, photo: Path) -> None:
    def submit() -> str:
        return stand.service.submit(GenerationRequest(image=str(photo), prompt="p", seconds=1)).id

    first, second = submit(), submit()
    stand.engine.go(FIRST)
    page.wait_for_selector(f'.lt-stage[data-url*="{first}"]')
    page.wait_for_selector('.lt-cell[aria-current="true"]')
    stand.engine.go(1 + FIRST - 3)
    page.wait_for_selector(f'.lt-status[data-job="{second}"][data-state="running"]')
    # The cleared video sends its events after the strip was built.
    pause = "all => all.map(one => one.dispatchEvent(new Event('pause')))"
    page.locator(".lt-stage video").evaluate_all(pause)
    assert page.locator('.lt-cell[aria-current="true"]').count() == 0

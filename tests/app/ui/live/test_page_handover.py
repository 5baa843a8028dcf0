"""Tests of the stage in Chromium when one job follows another, over an engine that waits for the test."""

from pathlib import Path
from typing import Any

from diffusers_helper.request import GenerationRequest
from tests.support.pages import FIRST, Stand, needs_chromium

pytestmark = needs_chromium


def test_a_job_does_not_wait_for_the_video_of_the_one_before(page: Any, stand: Stand, photo: Path) -> None:
    first, second = (submit(stand, photo, "the red ball moves right") for _ in range(2))
    # The first job's video never arrives, as over a slow line.
    page.route(f"**/jobs/{first}/video*", lambda route: None)
    with page.expect_request(f"**/jobs/{first}/video*"):
        stand.engine.go(FIRST)
    stand.engine.go(1 + FIRST)
    page.get_by_role("button", name="Watch it: the red ball moves right").click()
    # This takes far less than the half minute after which a load counts as failed.
    page.wait_for_selector(f'.lt-stage[data-url*="{second}"][data-swaps="1"]')
    assert page.evaluate("document.querySelector('.lt-stage video.lt-top').readyState") >= 2


def submit(stand: Stand, photo: Path, prompt: str, **settings: Any) -> str:
    request = GenerationRequest.from_dict({"image": str(photo), "prompt": prompt, "seconds": 1, **settings})
    return stand.service.queue.add(request).id

"""Tests of the stage in Chromium when one job follows another, over an engine that waits for the test."""

from pathlib import Path
from typing import Any

from diffusers_helper.request import GenerationRequest
from tests.support.pages import FIRST, Stand, needs_chromium, start, status

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


def test_no_section_is_marked_as_shown_before_there_is_a_video(page: Any, stand: Stand, photo: Path) -> None:
    def submit() -> str:
        return stand.service.queue.add(GenerationRequest(image=str(photo), prompt="p", seconds=1)).id

    first, second = submit(), submit()
    stand.engine.go(FIRST)
    page.wait_for_selector(f'.lt-stage[data-url*="{first}"]')
    page.wait_for_selector('.lt-cell[aria-current="true"]')
    stand.engine.go(1 + FIRST - 3)
    page.get_by_role("button", name="Watch it: p").click()
    page.wait_for_selector(f'.lt-status[data-job="{second}"][data-state="running"]')
    # The cleared video sends its events after the strip was built.
    pause = "all => all.map(one => one.dispatchEvent(new Event('pause')))"
    page.locator(".lt-stage video").evaluate_all(pause)
    assert page.locator('.lt-cell[aria-current="true"]').count() == 0


def submit(stand: Stand, photo: Path, prompt: str, **settings: Any) -> str:
    request = GenerationRequest.from_dict({"image": str(photo), "prompt": prompt, "seconds": 1, **settings})
    return stand.service.queue.add(request).id


def test_after_a_pause_the_card_tells_only_the_present(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, seconds=2.4)
    stand.engine.go(FIRST + 2)
    job = status(page, state="running", section=2, step=1).get_attribute("data-job")
    page.locator(".lt-latent").wait_for()
    page.get_by_role("button", name="Pause Generation").click()
    card = status(page, state="paused")
    assert card.locator(".lt-headline").inner_text() == "Paused"
    assert card.locator(".lt-eta").inner_text().endswith("so far")
    assert not page.locator(".lt-latent").is_visible()
    assert page.locator(".lt-cell[data-state='running']").count() == 0
    before = stand.service.job(job)
    card.get_by_role("button", name="Resume").click()
    running = status(page, state="running", section=1)
    assert running.locator(".lt-headline").inner_text() == "Starting the engine"
    resumed = stand.service.job(job)
    assert (resumed.started or 0.0) > (before.started or 0.0)  # the pause does not count
    stand.engine.go(1000)
    finished = status(page, state="finished")
    assert "repeated" not in finished.inner_text()
    assert "continues" not in finished.inner_text()

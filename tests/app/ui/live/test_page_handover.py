"""Tests of the stage in Chromium when one job follows another, over an engine that waits for the test."""

from pathlib import Path
from typing import Any

import pytest

from app.ui.catalogue import Catalogue
from app.ui.queue.endpoints import JobCalls
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import wait_until
from tests.support.pages import FIRST, FURTHER, VIDEO, Stand, module, needs_chromium, start, status

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


def test_a_finished_video_stays_and_plays_until_the_user_moves_on(
    page: Any, stand: Stand, photo: Path
) -> None:
    first, second = (submit(stand, photo, prompt, seconds=2.4) for prompt in ("one", "two"))
    stand.engine.go(FIRST)
    page.wait_for_selector(f'.lt-stage[data-url*="{first}"]')
    stand.engine.go(FURTHER + 1 + FIRST)
    announced = page.locator(f'.lt-next[data-job="{second}"]')
    announced.filter(has_text="Section 1 of 2 is finished").wait_for()
    assert announced.locator(".lt-next-prompt").inner_text() == "two"
    done = status(page, state="finished", frames=73)
    assert done.get_attribute("data-job") == first
    page.wait_for_selector(f'.lt-stage[data-url*="{first}/video.mp4"]')
    shown = page.evaluate(VIDEO)
    assert shown["duration"] == pytest.approx(73 / 30, abs=0.05)
    # It does not change when the next one grows, and the title tells of that one.
    page.wait_for_function("document.title.includes(' % ')")
    page.get_by_role("button", name="Watch it: two").click()
    page.wait_for_selector(f'.lt-stage[data-url*="{second}"]')
    status(page, state="running", job=second)
    announced.wait_for(state="hidden")


def test_the_stage_follows_to_what_is_made_of_a_video_after_it(page: Any, stand: Stand, photo: Path) -> None:
    first = submit(stand, photo, "one", then="enlarge:4")
    stand.engine.go(FIRST)
    page.wait_for_selector(f'.lt-stage[data-url*="{first}"]')
    stand.engine.go(1)
    second = status(page, state="running", frames=0).get_attribute("data-job")
    assert stand.service.job(second).parent == first
    queue = JobCalls(stand.service, Catalogue()).jobs_queue()
    assert queue["left"] == queue["jobs"][0]["left"] > 0
    page.evaluate(f"async (job) => (await {module('live/live.js')}).openOnStage(job)", first)
    status(page, state="finished", job=first)
    beat = page.locator(".lt-view").get_attribute("data-beat")
    page.wait_for_function("(beat) => document.querySelector('.lt-view').dataset.beat !== beat", arg=beat)
    page.get_by_role("button", name="Watch it: one").click()  # it has stayed
    stand.engine.go(1000)
    status(page, state="finished", job=second)
    page.wait_for_selector(f'.lt-stage[data-url*="{second}/video.mp4"]')


def test_a_paused_job_gives_its_place_on_the_stage_to_the_next(page: Any, stand: Stand, photo: Path) -> None:
    first, second = (submit(stand, photo, prompt, seconds=2.4) for prompt in ("one", "two"))
    stand.engine.go(FIRST)
    status(page, state="running", frames=33, job=first)
    page.get_by_role("button", name="Pause Generation").click()
    status(page, state="running", job=second)
    stand.service.queue.cancel(second)
    wait_until(lambda: stand.service.job(second).is_over)
    page.reload()
    page.get_by_role("tab", name="Queue, 1 waiting").click()
    page.get_by_role("button", name="Resume: one").click()
    page.get_by_role("tab", name="Create").click()
    status(page, state="running", job=first, frames=33)


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

"""Tests of the History tab in Chromium, over an engine that goes on when the test says so."""

from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.app.ui.test_accessibility import check
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import Stand, needs_chromium
from tests.support.staged_engine import FAILING_PROMPT

pytestmark = needs_chromium


@pytest.fixture
def make(stand: Stand, photo: Path) -> Any:
    """Return a function that makes videos, one after the other, and returns their jobs."""

    def made(*prompts: str, **settings: object) -> list[Job]:
        stand.engine.go(10_000)
        jobs = []
        for prompt in prompts:
            given = {"image": str(photo), "prompt": prompt, "seconds": 1.0, **settings}
            job = stand.service.queue.add(GenerationRequest.from_dict(given))
            wait_until(lambda job=job: stand.service.job(job.id).is_over)
            jobs.append(stand.service.job(job.id))
        return jobs

    return made


def gallery(page: Any, stand: Stand, count: int) -> None:
    """Show the History tab, and wait until it has so many cards."""
    page.goto(f"{stand.url.rstrip('/')}/#history")
    cards(page, count)


def cards(page: Any, count: int) -> None:
    page.wait_for_selector(f'.lt-videos[data-shown="{count}"]', state="attached")


def words(page: Any) -> list[str]:
    return page.locator(".lt-gallery .lt-video-card-words").all_inner_texts()


def opened(page: Any, job: Job) -> Any:
    page.wait_for_selector(f'.lt-past-open[data-job="{job.id}"]')
    return page.locator(".lt-past-open")


def test_a_card_plays_while_a_user_points_at_it_or_focuses_it(page: Any, stand: Stand, make: Any) -> None:
    first, second = make("first", "second")
    gallery(page, stand, 2)
    playing = page.locator(".lt-video-card[data-playing] video")
    page.locator(f'.lt-video-card[data-job="{first.id}"] img').hover()
    playing.wait_for()
    assert playing.get_attribute("src") == f"jobs/{first.id}/video.mp4?v=37"
    page.wait_for_function("document.querySelector('.lt-video-card video').currentTime > 0.1")
    page.locator(f'.lt-video-card[data-job="{second.id}"] img').hover()
    page.wait_for_selector(f'.lt-video-card[data-job="{second.id}"][data-playing]')
    assert page.locator(".lt-video-card video").count() == 1
    page.mouse.move(0, 0)
    page.wait_for_function("!document.querySelector('.lt-video-card video')")
    page.get_by_role("button", name="Favourites").focus()
    page.keyboard.press("Tab")
    page.wait_for_selector(f'.lt-video-card[data-job="{second.id}"][data-playing]')
    page.locator(f'.lt-video-card[data-job="{first.id}"] a').focus()
    page.wait_for_selector(f'.lt-video-card[data-job="{first.id}"][data-playing]')
    page.keyboard.press("Enter")
    opened(page, first)
    page.keyboard.press("Escape")
    page.wait_for_function(f"document.activeElement.closest('.lt-video-card')?.dataset.job === '{first.id}'")


def test_a_tap_opens_the_card(browser: Any, stand: Stand, make: Any) -> None:
    (job,) = make("a ball")
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 844})
    context.set_default_timeout(TIMEOUT * 1000)
    page = context.new_page()
    gallery(page, stand, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # Takes of the same words are told apart by the seeds among their facts.
    assert page.locator(".lt-video-card-facts").evaluate("one => one.scrollWidth <= one.clientWidth")
    page.locator(".lt-frame").tap()
    view = opened(page, job)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    stage = view.locator(".lt-stage").bounding_box()
    use = view.get_by_text("Use these settings").bounding_box()
    assert use["y"] > stage["y"] + stage["height"]
    context.close()


def branchable(job: Job, sections: int) -> None:
    """Give a job the latents that a real engine leaves."""
    folder = JobFolder(job.folder)
    folder.sections.mkdir(exist_ok=True)
    for number in range(1, sections + 1):
        (folder.sections / f"{number:04}.safetensors").write_bytes(b"latents")


def test_nothing_serious_on_the_gallery_and_in_a_video(page: Any, stand: Stand, make: Any) -> None:
    jobs = make("a ball", FAILING_PROMPT)
    (long,) = make("a long one", seconds=3.6)
    branchable(long, 3)
    gallery(page, stand, 3)
    check(page, "gallery")
    for job in (long, jobs[1]):
        page.goto(f"{stand.url.rstrip('/')}/#history/{job.id}")
        view = opened(page, job)
        for head in view.locator("summary:visible").all():
            if head.evaluate("(one) => !one.parentElement.open"):
                head.click()
        check(page, job.request.prompt)

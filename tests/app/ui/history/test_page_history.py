"""Tests of the History tab in Chromium, over an engine that goes on when the test says so."""

from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.app.ui.test_accessibility import check
from tests.support.jobs import wait_until
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


def opened(page: Any, job: Job) -> Any:
    page.wait_for_selector(f'.lt-past-open[data-job="{job.id}"]')
    return page.locator(".lt-past-open")


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

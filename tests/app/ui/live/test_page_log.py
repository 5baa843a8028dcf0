"""Tests of the job's log on the page in Chromium."""

from pathlib import Path
from typing import Any

from app.jobs.job import Job
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.pages import FIRST, Stand, needs_chromium, start, status

pytestmark = needs_chromium


def text_becomes(page: Any, text: str) -> None:
    page.wait_for_function("(text) => document.querySelector('.lt-log pre').textContent === text", arg=text)


def write(stand: Stand, text: str) -> Job:
    (job,) = stand.service.jobs()
    JobFolder(job.folder).log.write_text(text, encoding="utf-8")
    return job


def test_the_log_is_folded_follows_the_job_and_is_text(page: Any, stand: Stand, photo: Path) -> None:
    assert not page.locator(".lt-log").is_visible()
    start(page, photo, seconds=1)
    stand.engine.go(1)
    status(page, state="running")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator(".lt-details > summary").click()
    page.locator(".lt-log").wait_for()
    assert not page.locator(".lt-log pre").is_visible()
    page.locator(".lt-log summary").click()
    text_becomes(page, "Nothing has been logged for this video.")
    job = write(stand, "[Before VAE Load] Free: 4 GB\n<b>not markup</b>")
    text_becomes(page, "[Before VAE Load] Free: 4 GB\n<b>not markup</b>")
    assert any(url.endswith(f"/jobs/{job.id}/job.log") for url in asked)
    write(stand, f"in {job.folder}/sections")
    text_becomes(page, f"in <outputs>/{job.id}/sections")
    stand.engine.go(FIRST)
    status(page, state="finished")
    write(stand, "the end")
    page.reload()
    status(page, state="finished")
    page.locator(".lt-details > summary").click()
    page.locator(".lt-log summary").click()
    text_becomes(page, "the end")
    page.route("**/job.log", lambda route: None)  # no answer comes
    start(page, None, "a ball")
    status(page, state="running")
    text_becomes(page, "")

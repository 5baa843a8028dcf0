"""A video of six sections that is directed on the page with the demo model, by mouse and by touch."""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import PageProgram, free_port, needs_chromium, start, status

pytestmark = [*needs_chromium, pytest.mark.slow]
SECTIONS = 6
WINDOWS = {
    "click": {"viewport": {"width": 1440, "height": 900}},
    "tap": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}


class Window:
    """A window of the page, in which a user presses by mouse or by touch."""

    def __init__(self, browser: Any, url: str, hand: str) -> None:
        self._hand = hand
        self.page = browser.new_page(**WINDOWS[hand])
        self.page.set_default_timeout(TIMEOUT * 1000)
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]")

    def press(self, element: Any) -> None:
        getattr(element, self._hand)()

    def press_button(self, name: str | re.Pattern[str]) -> None:
        self.press(self.page.locator(".lt-live").get_by_role("button", name=name))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[], PageProgram]]:
    """Return a function that kills the server and its engine, if they run, and starts the server again."""
    port, running = str(free_port()), list[PageProgram]()

    def start_again() -> PageProgram:
        for program in running:
            program.end()
        running[:] = [PageProgram(tmp_path, "--port", port)]
        running[0].wait_until_up()
        return running[0]

    yield start_again
    for program in running:
        program.end()


def digest(file: Path | None) -> str:
    assert file is not None
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.timeout(3600)
def test_a_directed_video_outlasts_its_server_and_its_recipe_makes_the_same_bytes(
    server: Callable[[], PageProgram], browser: Any, photo: Path
) -> None:
    program = server()
    service = JobService(program.outputs)  # only looks
    mouse, touch = (Window(browser, program.url, hand) for hand in WINDOWS)

    def until(job: Job, state: str) -> Job:
        wait_until(lambda: service.job(job.id).state == state)
        return service.job(job.id)

    mouse.press(mouse.page.get_by_text("Forward · F1"))
    start(mouse.page, photo, "the red ball moves right", seconds=SECTIONS * 1.2, steps=8)
    status(mouse.page, state="running", section=1)
    (job,) = service.jobs()
    mouse.press(mouse.page.get_by_text("Direct it"))
    # It waits before the words are typed, so that no machine is too fast for the browser.
    mouse.press(mouse.page.get_by_label("Wait for me after each section"))
    mouse.page.get_by_label("What happens next").fill("the red ball moves up")
    mouse.press_button("Change the words")
    mouse.page.get_by_text("What comes next has the new words.").wait_for()
    assert until(job, "paused").request.prompt == "the red ball moves up"
    kept = num_finished_sections(JobFolder(job.folder))  # more than 1 if the machine is fast

    status(touch.page, state="paused", job=job.id)
    touch.press(touch.page.get_by_text("Direct it"))
    touch.press_button("Three takes of the next section")
    touch.page.get_by_text("3 of 3 takes ready").wait_for()
    touch.press_button(re.compile("Take 2 seed"))
    second = sorted(service.jobs()[:3], key=lambda one: one.created)[1]
    status(touch.page, state="paused", job=second.id)
    touch.press_button("Keep take 2 and go on")
    status(touch.page, state="running", job=second.id)
    server()

    until(second, "paused")  # it still waits after each section
    status(touch.page, state="paused", job=second.id)
    touch.press(touch.page.get_by_text("Direct it"))
    touch.press(touch.page.get_by_label("Wait for me after each section"))
    touch.page.get_by_text("It goes on by itself.").wait_for()
    touch.press_button("Resume")
    finished = until(second, "finished")
    status(touch.page, state="finished", job=second.id)
    spans = Lineage.read(JobFolder(second.folder).lineage).spans
    assert spans[0].settings["prompt"] == "the red ball moves right"
    assert spans[-1].last == kept >= 1
    assert finished.request.prompt == "the red ball moves up"

    # The recipe in the video makes it again, without a person.
    mouse.page.set_input_files("#file-image", str(finished.video))
    mouse.page.locator("#notice").get_by_text("Settings of video.mp4 loaded").wait_for()
    mouse.press(mouse.page.locator("#start"))
    wait_until(lambda: len(service.jobs()) == 5)
    again = until(service.jobs()[0], "finished")
    assert again.id != second.id
    assert digest(again.video) == digest(finished.video)
    for window in (mouse, touch):
        window.page.close()

"""Tests of the fold with which a video is directed while it grows."""

import re
from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job
from app.ui.live.scene import takes_for
from diffusers_helper.families.packing import Mode
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import GenerationRequest
from tests.app.ui.test_accessibility import violations
from tests.support.jobs import wait_until
from tests.support.pages import Stand, needs_chromium, status

pytestmark = needs_chromium


def grown(stand: Stand, photo: Path, sections: int, mode: Mode = "forward") -> Job:
    """Return a job that waits for a user after so many of its three sections."""
    stand.engine.go(10_000)
    request = GenerationRequest(image=str(photo), prompt="a ball", seconds=3.6, mode=mode)
    job = stand.service.queue.add(request, waits=True)
    for number in range(1, sections + 1):
        wait_until(lambda: stand.service.job(job.id).state == "paused")
        assert num_finished_sections(JobFolder(job.folder)) == number
        if number < sections:
            stand.service.queue.resume(job.id)
    return job


def test_takes_play_side_by_side_and_one_goes_on(page: Any, stand: Stand, photo: Path) -> None:
    job = grown(stand, photo, 1)
    page.set_viewport_size({"width": 1440, "height": 900})
    status(page, state="paused", job=job.id)
    page.get_by_text("Direct it").click()
    page.get_by_label("What happens next").fill("it goes up")
    page.get_by_role("button", name="Three takes of the next section").click()
    takes = page.get_by_role("region", name="Takes")
    takes.get_by_text("3 of 3 takes ready").wait_for()
    assert "1.2 – 2.4 s: which take?" in takes.inner_text()
    assert page.locator(".lt-panel").is_hidden()
    jobs = sorted(stand.service.jobs()[:3], key=lambda one: one.created)
    assert {one.request.prompt for one in jobs} == {"it goes up"}
    assert [tile.get_attribute("data-job") for tile in takes.locator("li").all()] == [one.id for one in jobs]
    tiles = takes.get_by_role("button", name=re.compile("Take . seed"))
    seeds = [text.rpartition("seed ")[2] for text in tiles.all_inner_texts()]
    assert seeds == [str(one.request.seed) for one in jobs]
    # Each plays its own section again and again, without a press.
    page.wait_for_function(
        "[...document.querySelectorAll('.lt-take video')]"
        ".every((one) => !one.paused && one.currentTime >= 1.2 && one.videoWidth)"
    )
    assert len({tile.bounding_box()["y"] for tile in tiles.all()}) == 1

    tiles.nth(1).click()
    second = jobs[1]
    status(page, state="paused", job=second.id)
    assert tiles.nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator(".lt-next").is_hidden()  # the others are in sight already
    takes.get_by_role("button", name="Compare").click()
    page.get_by_role("combobox", name="Right").select_option("Take 3")
    page.get_by_role("button", name="Keep take 3 and go on").wait_for()
    page.wait_for_function(
        """(jobs) => [...document.querySelectorAll('#compare video')]
        .every((video, index) => video.src.includes(jobs[index]) && video.currentTime >= 1.2)""",
        arg=[second.id, jobs[2].id],
    )
    page.keyboard.press("Escape")
    takes.get_by_role("button", name="Change the words first").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("it stops")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    row = takes.locator("ul")
    assert row.evaluate("(one) => one.scrollWidth > one.clientWidth")  # swiped
    assert not violations(page)
    takes.get_by_role("button", name="Keep take 2 and go on").click()
    status(page, state="finished", job=second.id)
    takes.wait_for(state="hidden")
    (span,) = Lineage.read(JobFolder(second.folder).lineage).spans[1:]
    assert (span.last, span.settings["prompt"]) == (2, "it goes up")
    assert stand.service.job(second.id).request.prompt == "it stops"
    states = [stand.service.job(one.id).state for one in (job, jobs[0], jobs[2])]
    assert states == ["cancelled", "cancelled", "cancelled"]


@pytest.mark.parametrize(("mode", "begin"), [("forward", 1.2), ("inverted", 0.0)])
def test_takes_are_named_by_their_time_in_the_whole_video(
    stand: Stand, photo: Path, mode: Mode, begin: float
) -> None:
    job = grown(stand, photo, 1, mode)
    takes = stand.service.steering.takes(job.id, 2)
    wait_until(lambda: all(stand.service.job(take.id).state == "paused" for take in takes))
    choice = takes_for(stand.service, job.id)
    assert choice is not None
    assert choice["title"] == "1.2 – 2.4 s: which take?"  # the second of three sections in both orders
    assert [(take["begin"], take["end"]) for take in choice["tiles"]] == 2 * [(begin, begin + 1.2)]

"""Tests of the fold with which a video is directed while it grows."""

import re
from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Job
from app.ui.live.scene import takes_for
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import GenerationRequest
from tests.app.ui.test_accessibility import violations
from tests.support.jobs import wait_until
from tests.support.pages import Stand, needs_chromium, start, status

pytestmark = needs_chromium
# Notes each sentence beneath the stage from now on.
SAID = """() => {
    window.said = '';
    const note = ({ addedNodes }) => addedNodes.forEach((one) => { window.said += one.textContent; });
    const place = document.querySelector('.lt-live .lt-after-say');
    new MutationObserver((changes) => changes.forEach(note)).observe(place, { childList: true });
}"""


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


@pytest.mark.parametrize("mode", MODES)
def test_at_the_end_of_a_paused_video_its_last_section_is_marked_and_it_ends_from_the_stage(
    page: Any, stand: Stand, photo: Path, mode: Mode
) -> None:
    job = grown(stand, photo, 2, mode)
    status(page, state="paused", job=job.id)
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_function("document.querySelector('.lt-stage video.lt-top').ended")
    page.wait_for_selector('.lt-stage[data-playing="false"]')
    marked = page.locator('.lt-cell[aria-current="true"]')
    assert marked.get_attribute("data-section") == ("2" if mode == "forward" else "1")
    status(page, state="paused", percent=67 if mode == "forward" else 63)
    page.get_by_role("button", name="End it here").click()
    status(page, state="cancelled", job=job.id)
    page.get_by_role("button", name="End it here").wait_for(state="hidden")


def test_a_take_that_waits_has_the_sections_that_it_keeps(page: Any, stand: Stand, photo: Path) -> None:
    job = grown(stand, photo, 2)
    stand.service.queue.pause_queue()
    (take,) = stand.service.steering.takes(job.id, 1)
    page.get_by_role("button", name=re.compile("^Take 1")).click()
    status(page, state="queued", job=take.id)
    cells = page.locator(".lt-cell")
    for cell in cells.all()[:2]:
        page.wait_for_function("one => one.naturalWidth", arg=cell.locator("img").element_handle())
    assert [cell.get_attribute("data-state") for cell in cells.all()] == ["done", "done", "waiting"]
    assert [cell.get_attribute("aria-label") for cell in cells.all()] == [
        "Section 0.0 – 1.2 s, finished", "Section 1.2 – 2.4 s, finished", "Section 2.4 – 3.6 s, waiting",
    ]  # fmt: skip
    assert [cell.locator("img").is_visible() for cell in cells.all()] == [True, True, False]


def test_a_press_on_a_section_offers_to_make_it_again(page: Any, stand: Stand, photo: Path) -> None:
    job = grown(stand, photo, 2)
    status(page, state="paused", job=job.id)
    page.locator('.lt-cell[data-section="1"]').click()
    offer = page.get_by_role("button", name="Again from here")
    assert offer.is_hidden()  # that would be another video
    page.locator('.lt-cell[data-section="2"]').click()
    form = page.locator(".lt-live .lt-panel")
    assert form.locator("h3").inner_text() == "Again: section 1.2 – 2.4 s and those made after it"
    offer.click()
    page.wait_for_selector('.lt-cell[data-section="2"][data-goes="true"]')
    assert page.locator('.lt-cell[data-section="1"]').get_attribute("data-goes") == "false"
    page.wait_for_function("document.activeElement?.tagName === 'TEXTAREA'")
    page.keyboard.press("Control+A")
    page.keyboard.type("another ball")
    page.evaluate(SAID)  # the sentence leaves as soon as the stage shows the branch
    form.get_by_role("button", name="Make this branch").click()
    page.wait_for_function("window.said.includes('The branch is in the queue.')")
    (branch, *_) = stand.service.jobs()
    wait_until(lambda: stand.service.job(branch.id).state == "paused")  # it waits like the video before
    assert (branch.request.prompt, Lineage.read(JobFolder(branch.folder).lineage).kept) == ("another ball", 1)
    assert branch.request.seed != job.request.seed


def test_a_video_waits_from_its_first_section_on(page: Any, stand: Stand, photo: Path) -> None:
    page.get_by_text("Say what happens when").click()
    page.get_by_text("Wait for me", exact=True).click()
    page.wait_for_selector('#fold-when summary[data-state="waits after each section"]')
    start(page, photo, seconds=3.6)
    stand.engine.go(10_000)
    status(page, state="paused", section=1)
    (job,) = stand.service.jobs()
    page.get_by_role("button", name="Resume").click()
    status(page, state="paused", section=2)
    assert num_finished_sections(JobFolder(job.folder)) == 2


def test_other_words_for_a_take_that_was_kept_leave_it_on_the_stage(
    page: Any, stand: Stand, photo: Path
) -> None:
    def rests(number: int, *jobs: Job) -> bool:
        finished = [num_finished_sections(JobFolder(job.folder)) for job in jobs]
        return finished == [number] * len(jobs) and all(
            stand.service.job(job.id).state == "paused" for job in jobs
        )

    stand.engine.go(10_000)
    request = GenerationRequest(image=str(photo), prompt="a ball", seconds=4.8, mode="forward")
    job = stand.service.queue.add(request, waits=True)
    wait_until(lambda: rests(1, job))
    takes = stand.service.steering.takes(job.id, 2)
    wait_until(lambda: rests(2, *takes))
    take = takes[0]
    page.get_by_role("button", name=re.compile("^Take 1")).click()
    page.get_by_role("button", name="Keep take 1 and go on").click()
    wait_until(lambda: rests(3, take))  # it waits after each section, as its parent did, which has ended
    status(page, state="paused", job=take.id)
    page.get_by_text("Direct it").click()
    page.locator(".lt-live .lt-panel-words").fill("it goes up")
    page.get_by_role("button", name="Change the words", exact=True).click()
    page.get_by_text("What comes next has the new words.").wait_for()
    assert stand.service.job(take.id).request.prompt == "it goes up"
    beat = float(page.locator(".lt-view").get_attribute("data-beat"))
    page.wait_for_function("(beat) => document.querySelector('.lt-view').dataset.beat > beat + 2", arg=beat)
    status(page, state="paused", job=take.id)
    assert page.locator(".lt-status").get_attribute("data-job") == take.id


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

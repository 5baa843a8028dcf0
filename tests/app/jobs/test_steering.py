"""Tests that a video is steered while it grows, and that its recipe then makes the same bytes by itself."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from app.jobs.job import Job, JobState
from app.jobs.steering import _is_open
from app.jobs.storage.commands import carry_out_change, commands_of
from diffusers_helper.events import SectionFinished, StepDone
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.recipe import read_recipe
from tests.support.jobs import RealStudio, Studio, wait_until
from tests.support.reported_jobs import job_of

SECTIONS = 4


class Director(RealStudio):
    """A service over a tiny model, whose jobs are steered."""

    def add(self, mode: str = "forward") -> Job:
        return self.submit("a red ball moves right", mode=mode, seconds=SECTIONS * 1.2, steps=2)

    def until_in(self, job: Job, kind: type, section: int) -> None:
        for item in self.service.follow(job.id):
            if item and isinstance(item[1], kind) and getattr(item[1], "section", 0) == section:
                return

    def until_state(self, job: Job, state: str) -> Job:
        wait_until(lambda: self.service.job(job.id).state == state)
        return self.service.job(job.id)

    def from_recipe(self, video: Path) -> Path:
        recipe = read_recipe(video)
        made = recipe.request({"image": str(self.picture)}, model=str(self.model))
        job = self.service.queue.add(made, allow_folder=True, lineage=recipe.lineage)
        return video_of(self.until_state(job, "finished"))


def video_of(job: Job) -> Path:
    assert job.video is not None
    return job.video


@pytest.fixture(scope="module")
def director(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Director]:
    """Provide a studio that the tests share, since the start of its engine takes longer than most of them."""
    director = Director(tmp_path_factory.mktemp("director"), tiny_model)
    yield director
    director.service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["forward", "inverted"])
def test_words_change_while_a_section_is_made_and_the_recipe_makes_the_same_bytes(
    director: Director, mode: str
) -> None:
    job = director.add(mode)
    director.until_in(job, StepDone, 2)
    director.service.steering.wait(job.id)
    director.service.steering.change(job.id, {"prompt": "it moves up"})
    paused = director.until_state(job, "paused")
    assert paused.message == "Your turn: go on, change the words, or try takes."
    assert paused.request.prompt == "it moves up"
    folder = JobFolder(job.folder)
    (span,) = Lineage.read(folder.lineage).spans
    last = span.last
    assert last in (2, 3)  # a slow machine may begin the third section before the command arrives
    assert last == num_finished_sections(folder)
    assert span.settings["prompt"] == "a red ball moves right"
    wait_until(lambda: director.engine.pid is None)  # the device is free

    director.service.steering.change(job.id, {"prompt": "it stops", "seed": 7})
    director.service.steering.wait(job.id, False)
    director.service.queue.resume(job.id)
    video = video_of(director.until_state(job, "finished"))
    spans = Lineage.read(folder.lineage).spans
    assert [(one.last, one.settings["prompt"]) for one in spans] == [(last, "a red ball moves right")]
    assert director.from_recipe(video).read_bytes() == video.read_bytes()


@pytest.mark.slow
def test_a_change_outlasts_the_program_and_applies_to_what_comes_after_it(director: Director) -> None:
    job = director.add()
    director.until_in(job, StepDone, 2)
    director.service.steering.change(job.id, {"prompt": "it moves up"})
    director.engine.kill()
    director.service.stop()
    director.service = director.open()
    director.service.start()
    video = video_of(director.until_state(job, "finished"))
    (span,) = Lineage.read(JobFolder(job.folder).lineage).spans
    assert span.last in (1, 2)
    assert director.service.job(job.id).request.prompt == "it moves up"
    assert director.from_recipe(video).read_bytes() == video.read_bytes()


@pytest.mark.slow
def test_one_of_several_takes_goes_on(director: Director) -> None:
    job = director.add()
    director.service.steering.wait(job.id)
    director.until_in(job, SectionFinished, 1)
    director.until_state(job, "paused")
    first, second = director.service.steering.takes(job.id, 2, keep=1)
    assert first.request.seed != second.request.seed
    for take in (first, second):
        director.until_state(take, "paused")
        assert num_finished_sections(JobFolder(take.folder)) == 2
    one, other = ((JobFolder(take.folder).sections / "0002.safetensors") for take in (first, second))
    assert one.read_bytes() != other.read_bytes()
    director.service.steering.resume(second.id)
    director.until_in(second, SectionFinished, 3)
    director.until_state(second, "paused")
    assert num_finished_sections(JobFolder(second.folder)) == 3
    director.service.steering.wait(second.id, False)
    director.service.steering.resume(second.id)
    video = video_of(director.until_state(second, "finished"))
    assert director.service.job(first.id).state == director.service.job(job.id).state == "cancelled"
    assert director.from_recipe(video).read_bytes() == video.read_bytes()


def grow(job: Job, sections: int) -> JobFolder:
    """Give a job finished sections, as an engine leaves them, and return its folder."""
    folder = JobFolder(job.folder)
    folder.sections.mkdir(exist_ok=True)
    for number in range(1, sections + 1):
        folder.latents(number).write_bytes(b"latents")
    return folder


def test_a_take_can_be_chosen_until_it_has_gone_on(tmp_path: Path) -> None:
    unfinished = {"queued", "running", "waiting", "paused", "interrupted"}
    for sections, states in ((1, unfinished), (2, {"paused", "finished"}), (3, set[str]())):
        job = job_of(folder=tmp_path)
        grow(job, sections)
        assert {state for state in get_args(JobState) if _is_open(replace(job, state=state), 1)} == states


def with_sections(studio: Studio, count: int) -> JobFolder:
    return grow(studio.submit("a", seconds=SECTIONS * 1.2), count)


@pytest.mark.parametrize("last", ["lineage.json", "request.json", "command"])
def test_a_change_that_is_cut_off_anywhere_is_carried_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    studio = Studio(tmp_path)
    store = studio.service.queue.store
    folder, whole = with_sections(studio, 2), with_sections(studio, 2)
    for one in (folder, whole):
        store.leave_command(one.job, "change", '{"prompt": "b", "seed": 7}')
    with store.transaction() as database:
        carry_out_change(database, whole)

    with monkeypatch.context() as patch:
        names = {"lineage.json": "store_request", "request.json": "forget_commands"}
        if last in names:  # the process dies after this file is written
            patch.setattr(f"app.jobs.storage.commands.{names[last]}", lambda *_, **__: 1 / 0)
        with contextlib.suppress(ZeroDivisionError), store.transaction() as database:
            carry_out_change(database, folder)
            if last == "command":  # the process dies before its row is removed
                raise ZeroDivisionError
    assert commands_of(folder) == {"change"}
    with store.transaction() as database:
        carry_out_change(database, folder)
    assert commands_of(folder) == set()
    assert folder.lineage.read_bytes() == whole.lineage.read_bytes()
    given, expected = (json.loads(one.request.read_text()) for one in (folder, whole))
    assert given | {"image": None} == expected | {"image": None}
    assert (given["prompt"], given["seed"]) == ("b", 7)
    assert studio.service.job(folder.job).request.prompt == "b"
    (span,) = Lineage.read(folder.lineage).spans
    assert (span.last, span.settings["prompt"]) == (2, "a")

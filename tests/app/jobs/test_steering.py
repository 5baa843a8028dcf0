"""Tests that a video is steered while it grows, and that its recipe then makes the same bytes by itself."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.job import Job, JobState
from app.jobs.storage.commands import carry_out_change, commands_of
from diffusers_helper.conditions.pictures import stored_request
from diffusers_helper.errors import InputError
from diffusers_helper.events import SectionFinished, StepDone
from diffusers_helper.provenance.branch import num_finished_sections
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.recipe import read_recipe
from tests.support.jobs import RealStudio, Studio, wait_until

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


def with_sections(studio: Studio, count: int) -> JobFolder:
    return grow(studio.submit("a", seconds=SECTIONS * 1.2), count)


@contextlib.contextmanager
def made_elsewhere(studio: Studio, folder: JobFolder) -> Iterator[None]:
    """Let the job be as one that another process makes."""
    other = studio.open().queue.store
    other.adopts = True
    assert other.claim(lambda job: "card" if job.id == folder.job else None)
    yield
    other.release()


def test_changes_before_the_end_of_a_section_add_up(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    folder, steering = with_sections(studio, 1), studio.service.steering
    with made_elsewhere(studio, folder):
        steering.change(folder.job, {"prompt": "b", "seed": 7})
        steering.change(folder.job, {"seed": 8})
    studio.service.recover()
    request = stored_request(folder.request.read_bytes(), folder)
    assert (request.prompt, request.seed) == ("b", 8)


def test_a_change_during_the_last_section_is_refused(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    folder = with_sections(studio, SECTIONS - 1)
    with made_elsewhere(studio, folder), pytest.raises(InputError, match="The last section of job"):
        studio.service.steering.change(folder.job, {"prompt": "b"})
    assert commands_of(folder) == set()


def as_made(job: Job, sections: int, state: JobState, studio: Studio) -> Job:
    grow(job, sections)
    studio.service.queue.store.enter(job.id, "running", started=1.0)
    return studio.service.queue.store.enter(job.id, state)


def test_a_choice_has_the_takes_that_were_not_continued(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    service, steering = studio.service, studio.service.steering
    parent = with_sections(studio, 2).job
    assert steering.choice(parent) is None
    first, second, third = steering.takes(parent, 3)
    service.queue.branch(parent, 2, seed=5)  # goes on by itself, so it is no take

    def numbers(job: str) -> list[tuple[int, str]]:
        choice = steering.choice(job)
        return [] if choice is None else [(number, take.id) for number, take in choice.takes]

    everyone = [(1, first.id), (2, second.id), (3, third.id)]
    assert numbers(parent) == numbers(second.id) == everyone
    as_made(first, 3, "paused", studio)
    as_made(second, 3, "paused", studio)
    as_made(third, SECTIONS, "finished", studio)  # a user has let it go on to its end
    assert numbers(parent) == numbers(first.id) == everyone[:2]
    assert numbers(third.id) == []
    service.queue.resume(second.id)
    assert numbers(first.id) == everyone[:1]
    assert numbers(second.id) == []


def test_a_take_keeps_its_number_when_the_one_before_it_has_ended(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    parent = with_sections(studio, 2).job
    first, second = studio.service.steering.takes(parent, 2)
    as_made(first, 3, "cancelled", studio)
    as_made(second, 3, "paused", studio)
    choice = studio.service.steering.choice(second.id)
    assert [(number, take.id) for number, take in choice.takes] == [(2, second.id)]


def test_the_choice_of_a_take_ends_what_was_not_chosen(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    service, steering = studio.service, studio.service.steering
    parent = with_sections(studio, 2)
    as_made(service.job(parent.job), 2, "paused", studio)
    made, whole, waiting = steering.takes(parent.job, 3)
    beside = service.queue.branch(parent.job, 1, seed=5)
    as_made(made, 3, "paused", studio)
    as_made(whole, SECTIONS, "finished", studio)

    def states() -> list[str]:
        return [service.job(one).state for one in (parent.job, made.id, whole.id, waiting.id, beside.id)]

    steering.resume(waiting.id)  # it is not made yet, so there is nothing to choose
    assert states() == ["paused", "paused", "finished", "queued", "queued"]
    steering.wait(made.id, False)  # the page does so if the video before did not wait
    steering.resume(made.id)
    assert states() == ["cancelled", "queued", "finished", "cancelled", "queued"]
    steering.resume(parent.job)  # one that has ended can still go on
    assert states() == ["queued", "queued", "finished", "cancelled", "queued"]


def test_a_section_as_it_was_is_chosen_among_its_takes(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    service, steering = studio.service, studio.service.steering
    parent = with_sections(studio, 3)
    as_made(service.job(parent.job), 3, "paused", studio)
    takes = steering.takes(parent.job, 2, keep=2)
    steering.resume(parent.job)
    assert service.job(parent.job).state == "queued"
    assert [service.job(take.id).state for take in takes] == ["cancelled", "cancelled"]


def test_takes_of_the_last_section_are_beside_the_one_that_was_there(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    steering = studio.service.steering
    parent = with_sections(studio, 3).job
    steering.wait(parent)
    (take,) = steering.takes(parent, 1, keep=2)
    choice = steering.choice(parent)
    assert [(number, job.id) for number, job in choice.takes] == [(0, parent), (1, take.id)]
    assert (choice.parent, choice.keep, choice.waits) == (parent, 2, True)


def test_a_new_job_waits_from_its_first_section_on_and_so_do_its_branches(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    queue, request = studio.service.queue, studio.submit("a", seconds=SECTIONS * 1.2).request
    job = queue.add(request, allow_folder=True, waits=True)
    as_made(job, 2, "paused", studio)
    again = queue.branch(job.id, 1, seed=7)
    assert commands_of(JobFolder(job.folder)) == commands_of(JobFolder(again.folder)) == {"wait"}
    as_made(again, SECTIONS, "finished", studio)
    assert commands_of(JobFolder(queue.branch(again.id, 1, seed=8).folder)) == set()


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


def test_what_cannot_be_steered_is_refused_in_a_sentence(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    job, steering = studio.submit("a"), studio.service.steering
    with pytest.raises(InputError, match="cannot change mode"):
        steering.change(job.id, {"mode": "forward"})
    with pytest.raises(InputError, match="number of takes is 9; expected one from 1 to 8"):
        steering.takes(job.id, 9)
    with pytest.raises(InputError, match="no finished section"):
        steering.takes(job.id)
    assert steering.change(job.id, {"prompt": "b"}).request.prompt == "b"
    studio.service.queue.cancel(job.id)
    with pytest.raises(InputError, match="is cancelled; expected one that is not over"):
        steering.wait(job.id)


def test_a_change_is_carried_out_at_whatever_end(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    job = studio.submit("a", seconds=3.6, mode="forward")
    folder = grow(job, 1)
    studio.service.queue.store.leave_command(job.id, "change", '{"prompt": "b"}')
    ended = studio.service.queue.store.enter(job.id, "cancelled", reason="You ended it.")
    assert (ended.state, ended.request.prompt) == ("cancelled", "b")
    (span,) = Lineage.read(folder.lineage).spans
    assert (span.last, span.settings["prompt"]) == (1, "a")

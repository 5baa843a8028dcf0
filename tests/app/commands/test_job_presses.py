"""Transcripts of `longtake jobs`: what each command says, its exit code, and all that it changes."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.history import Retention, tidy
from app.jobs.service import JobService
from app.jobs.storage.commands import PAUSED, WAITS
from diffusers_helper.events import Failed, Finished, SectionFinished, StepDone
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.units import GB
from tests.support.jobs import write_picture
from tests.support.transcripts import Transcript

ADD = "jobs add --image TMP/picture.png --model demo --mode forward --seconds 3.6"
SECTIONS = 3


class Story(Transcript):
    """A transcript with a program that makes jobs as it is told."""

    def __init__(self, root: Path, *arguments: Any) -> None:
        super().__init__(root, *arguments)
        self.picture = write_picture(root / "picture.png")
        self.service = JobService(self.outputs)
        self.maker = JobService(self.outputs).queue.store

    def claims(self) -> None:
        self.maker.adopts = True
        self.does("a program takes the next job", lambda: self.maker.claim(lambda job: "W7900") and None)
        self.maker.adopts = False

    def makes(self, job: str, section: int) -> None:
        def make() -> None:
            for file, content in (
                (folder.latents(section), b"latents"), (folder.segment(section), b"frames"),
                (folder.thumb(section), b"picture"), (folder.path / f"video-{section}.mp4", bytes(section)),
            ):  # fmt: skip
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(content)
            folder.sums.write_text('{"0001.mp4": "a", "0002.mp4": "b"}')
            video = str(folder.path / f"video-{section}.mp4")
            frames = 36 * section + 1
            facts: dict[str, Any] = {"job": job, "time": 10.0 * section, "video": video, "frames": frames}
            self.maker.record(SectionFinished(**facts, section=section, sections=SECTIONS))
            if section == SECTIONS:
                self.maker.record(Finished(**facts, seconds=30.0))
                self.maker.release_job(job)

        folder = JobFolder(self.outputs / job)
        self.does(f"section {section} of {job} is made", make)

    def rests(self, job: str, state: Any = "paused", facts: Any = WAITS) -> None:
        self.does(f"its program lets {job} become {state}", lambda: self.maker.enter(job, state, **facts) and None)
        self.maker.release_job(job)

    def dies(self, step: int) -> None:
        (job,) = self.maker.making
        self.maker.record(StepDone(job=job, time=5.0, section=2, step=step, steps=4))
        self.maker.release()
        self.does(f"its program dies at step {step}", self.service.recover)


@pytest.fixture
def story(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Story:
    seeds = itertools.count(101)
    monkeypatch.setattr("app.jobs.steering.random_seed", lambda: next(seeds))
    usage = SimpleNamespace(total=100 * GB, used=0, free=64 * GB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return Story(tmp_path, capsys, monkeypatch)


def test_the_queue(story: Story, snapshot: SnapshotAssertion) -> None:
    story(
        "jobs list",
        f"{ADD} --prompt 'a ball' --steps 3",
        f"{ADD} --prompt 'the \"boat\" <b>&amp;</b> 海鸥' --seed 7 --wait",
        f"{ADD} --prompt c --one-frame 9",
        "jobs add --prompt c --image TMP/picture.png",
        "jobs reorder job-c --first",
        "jobs reorder job-c --after job-a",
        "jobs reorder job-c --last",
        "jobs reorder job-c --before job-b",
        "jobs reorder job-c --before job-c",
        "jobs list --queue",
        "jobs pause --all",
        "jobs pause job-a job-b nojob job-a",
        "jobs pause nojob job-a",
        "jobs resume job-a",
        "jobs show job-b",
        "jobs list",
        "jobs resume --all",
        "jobs resume --all",
        "jobs resume job-c job-b job-b",
        "jobs cancel --after-section job-c job-a",
        "jobs cancel job-c job-a",
        "jobs reorder job-c --first",
        "jobs wait job-c job-b",
        "jobs list --state cancelled --limit 1",
        "jobs list 'BOAT 7' --json --limit 1",
        "jobs retry --all",
        "jobs retry --all",
        "jobs retry job-b",
    )
    queue, request = story.service.queue, story.service.job("job-b").request
    story.does("job-c is edited", lambda: queue.edit("job-c", request) and None)
    story.does("job-b is copied", lambda: queue.duplicate("job-b", {"seed": 8, "steps": 5}) and None)
    assert str(story) == snapshot


def test_a_video_that_is_steered(story: Story, snapshot: SnapshotAssertion) -> None:
    story(f"{ADD} --prompt 'a ball' --cfg 2")
    story.claims()
    story.makes("job-a", 1)
    story(
        "jobs pause job-a",
        "jobs pause job-a",
        "jobs resume job-a",
        "jobs resume job-a",
        "jobs cancel --after-section job-a",
        "jobs change job-a --prompt up",
        "jobs change job-a --seed 5",
        "jobs branch job-a --keep 1 --seed 7",
        "jobs pause job-b",
        "jobs wait job-a",
        "jobs remove job-a",
        "jobs branch job-a --longer 1.2",
    )
    story.rests("job-a")
    story(
        "jobs change job-a --prompt down --seed 8",
        "jobs change job-a --crf 3",
        "jobs takes job-a --count 9",
        "jobs takes job-a --count 3",
        "jobs branch job-a --keep 9",
    )
    for job in "cd":
        story.claims()
        story.makes(f"job-{job}", 2)
        story.rests(f"job-{job}")
    choices = [story.service.steering.choice(f"job-{job}") for job in "abcde"]
    told = [choice and (choice.keep, choice.waits, [(n, job.id) for n, job in choice.takes]) for choice in choices]
    story.does("the choice of each is looked at", lambda: "\n".join(map(str, told)))
    story("jobs resume job-d", "jobs wait job-d --off", "jobs pause job-e", "jobs takes job-e --count 1 --keep 0")
    story.claims()
    story.makes("job-d", 3)
    story(
        "jobs list", "jobs branch job-d --longer 1.2 --prompt on", "jobs cancel job-d", "jobs retry job-d",
        "jobs resume job-a",
    )  # fmt: skip
    assert str(story) == snapshot


def test_the_trash(story: Story, snapshot: SnapshotAssertion) -> None:
    story(*(f"{ADD} --prompt {word}" for word in ("one", "two", "three", "four")))
    story.claims()
    for section in range(1, SECTIONS + 1):
        story.makes("job-a", section)
    for job, size in {"b": 3 * 10**7, "c": 4_740_000, "d": 2_200_000}.items():
        (story.outputs / f"job-{job}" / "large").write_bytes(bytes(size))
    story(
        "jobs export job-b --to TMP/other.mp4",
        "jobs remove job-a nojob job-b",
        "jobs show job-a",
        "jobs list",
        "jobs usage",
        "jobs restore job-a nojob job-a",
        "jobs restore ../job-a",
        "jobs delete job-b job-b",
        "jobs remove job-c",
        "jobs empty-trash",
        "jobs rebuild --json",
        "jobs rebuild",
    )
    service = story.service
    story.does("job-a becomes a favourite", lambda: service.history.set_favourite("job-a", True) and None)
    story("jobs list --favourites", "jobs cancel job-d", f"{ADD} --prompt five")
    day = 86400.0
    for days, kept in ((29.9, Retention(30 * day)), (0.2, Retention(30 * day)), (6.9, Retention()), (0.2, Retention())):
        story.clock.now += days * day
        story.does(f"the folder is tidied {days} days later", lambda kept=kept: tidy(service.queue.store, kept))
    story("jobs cancel job-e")
    (story.outputs / "job-e" / "large").write_bytes(bytes(10**7))
    for size in (2 * 10**7, 10**7):
        kept = Retention(size_bytes=size)
        story.does(f"{size} bytes are left", lambda kept=kept: tidy(service.queue.store, kept))
    assert str(story) == snapshot


def test_programs_that_die(story: Story, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    monkeypatch.setattr("app.jobs.storage.commands._MOST_DEATHS", 2)
    page = story.service.queue.store
    story(f"{ADD} --prompt one", f"{ADD} --prompt two")
    story.claims()
    story.makes("job-a", 1)
    story.dies(step=1)
    story("jobs list", "jobs list --state interrupted", "jobs resume job-a")
    story.claims()
    story.dies(step=2)
    story("jobs pause job-a", "jobs resume job-a")
    for _ in range(2):
        story.claims()
        story.dies(step=3)
        page.adopts = True
        story.does("a page looks after it", page.recover)
        page.adopts = False
    story("jobs pause job-a", "jobs retry --all")
    story.claims()
    story("jobs pause --all", "jobs cancel job-b", "jobs resume job-b")
    story.rests("job-b", facts=PAUSED)
    story("jobs resume --all", f"{ADD} --prompt three", "jobs cancel job-a")
    story.claims()
    failed = Failed(job="job-b", time=3.0, message="It broke.", remedy="Set `steps`.", video=None)
    story.does("job-b fails", lambda: story.maker.record(failed))
    story("jobs list")
    assert str(story) == snapshot

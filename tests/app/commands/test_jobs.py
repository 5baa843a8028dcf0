"""Transcripts of `longtake jobs`: what each command says, its exit code, and all that it changes."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from app.jobs.history import Retention, tidy
from app.jobs.service import JobService
from app.jobs.storage.commands import PAUSED, WAITS
from app.jobs.storage.database import DATABASE_FOLDER
from app.jobs.storage.folders import size_of
from app.jobs.storage.store import JobStore
from diffusers_helper.events import Failed, Finished, SectionFinished, StepDone
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.units import GB
from tests.support.jobs import write_picture
from tests.support.program import answer
from tests.support.shared import Sharing, events
from tests.support.transcripts import Transcript

ADD = "jobs add --image TMP/picture.png --model demo --mode forward --seconds 3.6"
SECTIONS = 3
VAE_USE = {"section": 0, "tile": 96, "precision": "fp32", "chunk": 3}
BOAT = 'ein großes "Boot" <b>&amp;</b> 海鸥 ボート nachts'
LONG = "a\n  " + 47 * "c"  # of which a list shows 48 characters


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
            segments = [folder.segment(number) for number in range(1, section + 1)]
            for file, content in (
                (folder.latents(section), b"latents"), *((file, b"frames") for file in segments),
                (folder.thumb(section), b"picture"), (folder.path / f"video-{section}.mp4", bytes(section)),
                (folder.encodings, b"encodings"), (folder.vae, json.dumps([VAE_USE]).encode()),
                (folder.sums, json.dumps({file.name: f"{len(file.name)}" for file in segments}).encode()),
            ):  # fmt: skip
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(content)
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
        self.does(f"its program lets {job} become {state}", lambda: self.maker.enter(job, state, **facts))
        self.maker.release_job(job)

    def looks_at_choices(self, jobs: str) -> None:
        lines = list[str]()
        for job in jobs:
            choice = self.service.steering.choice(f"job-{job}")
            takes = choice and [(number, take.id) for number, take in choice.takes]
            lines.append(f"job-{job}: {choice and (choice.parent, choice.keep, choice.waits, takes)}")
        self.does("the choices are looked at", lambda: "\n".join(lines))

    def adopts(self, page: JobStore) -> None:
        page.adopts = True
        self.does("a page looks after it", page.recover)
        page.adopts = False

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
        f"{ADD} --prompt '{48 * 'a'}' --steps 3",
        f"{ADD} --prompt '{BOAT}' --negative Unschärfe --seed 7 --wait",
        f"jobs add --prompt '{LONG}' --image TMP/picture.png --one-frame 9",
        f"{ADD} --prompt x --one-frame 9",
        "jobs reorder job-c --first",
        "jobs reorder job-c --after job-a",
        "jobs reorder job-c --last",
        "jobs reorder job-c --before job-b",
        "jobs reorder job-c --before job-c",
        "jobs list --queue",
        "jobs list --queue --limit 1",
        "jobs pause --all",
        "jobs list --json --limit 1",
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
        "jobs list 'BOOT 7 unsch' --json --limit 1",
        "jobs retry --all",
        "jobs retry --all",
        "jobs retry job-b",
    )
    assert story.transcript() == snapshot(name="presses")
    story("jobs pause", "jobs resume", "jobs retry", *(f"jobs list --limit {n}" for n in (0, -1, 10**30)))
    queue, request = story.service.queue, story.service.job("job-b").request
    story.does("job-c is edited, without a change of its picture", lambda: queue.edit("job-c", request))
    Image.new("RGB", (48, 32), (0, 0, 255)).save(story.picture)
    story.does(
        "and with another picture", lambda: queue.edit("job-c", replace(request, image=str(story.picture)))
    )
    story.does("and with no model", lambda: queue.edit("job-c", replace(request, model="nope")))
    story.picture.unlink()
    story.does("job-b is copied", lambda: queue.duplicate("job-b", {"seed": 8, "steps": 5}))
    story.does("job-b is copied wrongly", lambda: queue.duplicate("job-b", {"steps": -1}))
    story.claims()
    story.does("job-b, which runs, is edited", lambda: queue.edit("job-b", request))
    lock = story.maker.lock_card("W7900")
    story("jobs resume job-a", "jobs pause job-a", "jobs resume job-a")
    story.maker.release()
    lock.release()
    (story.outputs / "job-c" / "request.json").write_text('{"steps": 1e9}')
    shutil.rmtree(story.outputs / DATABASE_FOLDER)
    story("jobs list", "jobs pause nojob", "jobs resume job-c", "jobs list", "jobs resume --all")
    assert story.transcript() == snapshot(name="edits and damage")


def test_a_video_that_is_steered(story: Story, snapshot: SnapshotAssertion) -> None:
    story(f"{ADD} --prompt 'a ball' --cfg 2")
    story.claims()
    story.makes("job-a", 1)
    story(
        "jobs pause job-a", "jobs pause job-a", "jobs resume job-a", "jobs resume job-a",
        "jobs cancel --after-section job-a", "jobs change job-a --prompt up", "jobs change job-a --seed 5",
        "jobs takes job-a --count 1", "jobs delete job-b", "jobs branch job-a --keep 1 --seed 7",
        "jobs pause job-c", "jobs wait job-a", "jobs remove job-a", "jobs branch job-a --longer 1.2",
    )  # fmt: skip
    story.rests("job-a")
    queue, branch = story.service.queue, story.service.job("job-c").request
    story(
        "jobs change job-a --prompt down --seed 8", "jobs change job-a --crf 3",
        "jobs takes job-a --count 9", "jobs branch job-a --keep 9", "jobs branch job-a --keep 1",
        "jobs delete job-d",
    )  # fmt: skip
    for change in (
        {"prompt": "b", "seconds": 6.0},
        {"crf": 30},
        {"seconds": 1.0},
        {"image": str(story.picture)},
    ):
        edited = replace(branch, **change)  # pyright: ignore[reportArgumentType]
        story.does(f"job-c is edited: {change}", lambda edited=edited: queue.edit("job-c", edited))
    story.does("the order is changed", lambda: story.service.steering.change("job-a", {"mode": "inverted"}))
    assert story.transcript() == snapshot(name="while it is made")

    story("jobs takes job-a --count 3")
    for job in "ef":
        story.claims()
        story.makes(f"job-{job}", 2)
        story.rests(f"job-{job}")
    story.looks_at_choices("acefg")
    story("jobs cancel job-e", "jobs resume job-e", "jobs pause job-e", "jobs takes job-e --count 1 --keep 1")
    story.looks_at_choices("aeh")
    story(
        "jobs resume job-e", "jobs pause job-e", "jobs resume job-f", "jobs wait job-f --off",
        "jobs branch job-e --keep 1",
    )  # fmt: skip
    story.looks_at_choices("aefg")
    story("jobs delete job-i")
    story.claims()
    story("jobs change job-f --prompt late")
    story.makes("job-f", 3)
    assert story.transcript() == snapshot(name="takes")

    story(
        "jobs list", "jobs branch job-f --longer 1.2 --prompt on", "jobs cancel job-f", "jobs retry job-f",
        "jobs resume job-a", "jobs cancel job-a job-j", "jobs change job-a --prompt later",
        "jobs takes job-f --count 1 --keep 2",
    )  # fmt: skip
    story.claims()
    story.makes("job-k", 3)
    story.looks_at_choices("fk")
    story.does("job-k is copied", lambda: queue.duplicate("job-k", {"seed": 2}))
    story.does("its beginning is copied", lambda: queue.duplicate("job-k", {"seconds": 1.2}))
    story("generate --resume job-f")
    assert story.transcript() == snapshot(name="the end")


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
    story.does("job-a becomes a favourite", lambda: service.history.set_favourite("job-a", True))
    story("jobs list --favourites", "jobs cancel job-d", f"{ADD} --prompt five")
    assert story.transcript() == snapshot(name="by hand")
    keeps, store, day = Retention(30 * 86400.0), service.queue.store, 86400.0
    ends = service.job("job-d").ended or 0.0
    for now in (30 * day, 30 * day + 1, 37 * day + 1, 37 * day + 2):
        story.clock.now = ends + now - 1.0
        story.does(f"the folder is tidied {now:.0f} s later", lambda: tidy(store, keeps))
    story(f"{ADD} --prompt six", "jobs cancel job-e", "jobs remove job-f")
    for job, size in {"e": 10**7, "a": 10**6}.items():
        (story.outputs / f"job-{job}" / "large").write_bytes(bytes(size))
    size = sum(size_of(folder) for job in "aef" for folder in story.outputs.rglob(f"job-{job}"))
    for fewer in (0, 1, 10**6):
        copy = Retention(size_bytes=size - fewer)
        story.does(f"{fewer} bytes too many", lambda copy=copy: tidy(store, copy))
    assert story.transcript() == snapshot(name="by itself")


def test_programs_that_die(
    story: Story, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("app.jobs.storage.commands._MOST_DEATHS", 2)
    page = story.service.queue.store
    story(f"{ADD} --prompt one", f"{ADD} --prompt two")
    story.claims()
    story.makes("job-a", 1)
    story.dies(step=1)
    story("jobs list", "jobs list --state interrupted", "jobs list --json")
    story.adopts(page)
    story.claims()
    story.dies(step=2)
    story("jobs pause job-a", "jobs resume job-a")
    for _ in range(2):
        story.claims()
        story.dies(step=3)
        story.adopts(page)
    story("jobs pause job-a", "jobs retry --all")
    story.claims()
    story("jobs pause --all")
    story.rests("job-b", facts=PAUSED)
    story("jobs resume job-b", "jobs pause --all", "jobs resume --all", "jobs resume --all")
    story.claims()
    story("jobs cancel job-b", "jobs resume job-b")
    story.rests("job-b", facts=PAUSED)
    story("jobs pause --all", "jobs resume --all", f"{ADD} --prompt three", "jobs cancel job-a")
    story.claims()
    failed = Failed(job="job-b", time=3.0, message="It broke.", remedy="Set `steps`.", video=None)
    story.does("job-b fails", lambda: story.maker.record(failed))
    story("jobs list")
    assert story.transcript() == snapshot


def test_an_export_never_replaces_a_file(
    sharing: Sharing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def export(to: Path, *more: str, job: str = "") -> tuple[int, str, str]:
        words = ("jobs", "export", job or result.id, "--to", str(to), *more, "--out", str(sharing.outputs))
        return answer(capsys, *words)

    server = sharing.open()
    sharing.go(server)
    result = sharing.add(server)
    events(server, result)
    target = tmp_path / "mine.mp4"
    target.write_bytes(b"mine")
    (tmp_path / "link.mp4").symlink_to(tmp_path / "gone.mp4")
    for name in ("mine.mp4", "link.mp4"):
        code, _, complaint = export(tmp_path / name)
        assert (code, complaint.count("cannot be written (it is there already)")) == (2, 1)
    assert target.read_bytes() == b"mine"
    assert not (tmp_path / "gone.mp4").exists()
    code, output, _ = export(tmp_path, "--json")
    assert (code, Path(json.loads(output)["exported"]).read_bytes()) == (
        0,
        (result.folder / "video.mp4").read_bytes(),
    )
    assert export(tmp_path)[0] == 2
    assert "codec is 'nope'" in export(tmp_path / "new.mp4", "--codec", "nope")[2]

"""All that the page gets of jobs in the making, in each state, and at their end."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.job import NoSuchJob
from app.jobs.pace import pace_of
from app.jobs.queue import RESUMED
from app.jobs.storage.commands import PAUSED, WAITS
from app.ui.live import words
from app.ui.live.progress import LiveJob
from app.ui.live.scene import download_name, scene_data
from app.ui.queue.records import card_lines
from diffusers_helper.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    PieceDone,
    Reading,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.provenance.lineage import Lineage, Span
from tests.support.reported_jobs import history, job_of, slow_start
from tests.support.staged_engine import memory_record
from tests.support.whole_answers import changes, whole

COST = {"load": 40.0, "first": 14.0, "step": 12.0, "latent": 2.0, "write": 0.5}
ID = "20261121-081530-3f9a"
OF_JOB = ("state", "started", "ended", "message", "remedy", "favourite", "card")


class Transcript:
    """The scenes of a job, of which each is told by what has changed since the one before."""

    def __init__(self, live: LiveJob) -> None:
        self.live = live
        self._last = self._scene(3.0)
        self._lines = [whole(self._last)]

    def then(self, name: str, *events: Event, after: float = 3.0, **facts: Any) -> None:
        for event in events:
            self.live.apply(event)
        self.live.job = replace(self.live.job, **{key: facts.pop(key) for key in OF_JOB if key in facts})
        for key, value in facts.items():
            setattr(self.live, key, value)
        view = self._scene(after)
        self._lines.append(f"--- {name}\n{changes(self._last, view)}")
        self._last = view

    def _scene(self, after: float) -> dict[str, Any]:
        """Return what the page gets some seconds after the last event, with the line of the terminal."""
        elapsed = self.live.last_sign + after
        now = (self.live.job.started or 1000.0) + elapsed
        line = words.line(self.live, elapsed)
        return scene_data(self.live, now, lambda job: f"report of {job.id}") | {"line": line}

    @property
    def text(self) -> str:
        return "\n".join(self._lines)


def said(event: Event) -> str:
    facts = (f"{name} {getattr(event, name, '')}" for name in ("stage", "section", "step", "piece"))
    return " ".join((type(event).__name__, *(fact for fact in facts if not fact.endswith((" ", "None")))))


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs" / ID
    (folder / "thumbs").mkdir(parents=True)
    return folder


def test_the_first_video_of_a_slow_card(tmp_path: Path, snapshot: Any) -> None:
    folder = folder_of(tmp_path)
    preview = folder / "preview.png"
    preview.write_bytes(b"the picture")
    transcript = Transcript(LiveJob(job_of(seconds=3.6, folder=folder)))
    for event in slow_start(transcript.live.job):
        if isinstance(event, StepDone):
            event = replace(event, preview=str(preview))
        is_told = getattr(event, "step", getattr(event, "piece", 1)) in (1, 3)
        if is_told and not (isinstance(event, Reading) and 4 * 2**30 < event.done_bytes < event.total_bytes):
            transcript.then(said(event), event)
        else:
            transcript.live.apply(event)
    about: dict[str, Any] = {"job": ID, "time": transcript.live.last_sign + 10}
    transcript.then(
        "reads what comes next", StageStarted(**about, stage="load"),
        Reading(**about, done_bytes=3 * 2**30, total_bytes=24 * 2**30),
    )  # fmt: skip
    transcript.then("the second section", StageStarted(**about, stage="sample", section=2))
    assert transcript.text == snapshot


def test_a_video_of_one_section_and_its_end(tmp_path: Path, snapshot: Any) -> None:
    transcript = Transcript(LiveJob(job_of(seconds=1.0, folder=folder_of(tmp_path))))
    events = slow_start(transcript.live.job)
    text = StageStarted(job=ID, time=10.0, stage="text", expected_seconds=60.0, seconds_to_video=70.0)
    transcript.then("as long as expected", text, after=60.0)
    transcript.then("samples", *events[: -len(events) // 4])
    transcript.then("is made", *events[-len(events) // 4 :])
    assert transcript.text == snapshot


def test_wishes_and_ends_of_a_running_video(tmp_path: Path, snapshot: Any) -> None:
    folder = folder_of(tmp_path)
    (folder / "thumbs" / "0001.webp").touch()
    preview = folder / "preview.png"
    preview.write_bytes(b"the picture")
    transcript = Transcript(LiveJob(job_of(seconds=3.6, folder=folder)))
    for event in slow_start(transcript.live.job):
        transcript.live.apply(event)
    now = transcript.live.last_sign
    about: dict[str, Any] = {"job": ID, "time": now + 100}
    begin = StageStarted(**about, stage="sample", section=2)
    (folder / "memory.json").write_text(json.dumps(memory_record(1)))
    transcript.then("the second section", begin, awake=True)
    step = {**about, "section": 2, "steps": 25, "preview": str(preview)}
    transcript.then("a step", StepDone(**step, step=4))
    transcript.then("silence", after=200.0)
    texts = (
        "Not <known>.",
        f"Lost {folder}/y.bin.",
        "Not <known>.",
        "Lost /mnt/private stuff/y.bin.",
        RESUMED,
    )
    transcript.then("warnings, and a new engine", *(Warned(**about, message=text) for text in texts))
    transcript.then("is made again", begin, StepDone(**step, step=5))
    transcript.then("stops after the section", commands=frozenset({"stop_after_section"}))
    transcript.then("pauses", commands=frozenset({"pause"}))
    transcript.then("ends", commands=frozenset({"cancel", "wait"}))
    for stage in ("load", "decode", "write"):
        transcript.then(f"ends in {stage}", StageStarted(**about, stage=stage, section=2))
    transcript.then("is over before its last event", state="cancelled", ended=3000.0, commands=frozenset())
    end = {"video": f"/o/{ID}/video-0001.mp4", "frames": 33, "peak_host_bytes": 2**31}
    transcript.then("has ended", Cancelled(**{**about, "time": now + 120}, **end))
    assert transcript.text == snapshot


def test_a_video_on_a_known_machine(snapshot: Any) -> None:
    job = job_of("forward", 5.0, 6)
    job = replace(job, request=replace(job.request, step_cache="teacache"))
    transcript = Transcript(LiveJob(job, pace_of(history(job, **COST), job.request), 96, 64))
    for event in history(job, load=35.0, first=10.0, step=14.0, latent=1.5, write=0.4):
        is_part = isinstance(event, StepDone | PieceDone) and (event.section, getattr(event, "step", 3)) != (
            2,
            3,
        )
        if (
            is_part
            or "write" in said(event)
            or ("Stage" in said(event) and getattr(event, "section", 1) != 1)
        ):
            transcript.live.apply(event)
        else:
            transcript.then(said(event), event)
    transcript.then("over", state="finished", ended=1400.0, favourite=True, card="card 0")
    assert transcript.text == snapshot


def test_a_branch_in_every_state(tmp_path: Path, snapshot: Any) -> None:
    folder = folder_of(tmp_path)
    request = replace(
        job_of("forward", 4.8).request, prompt="a &amp; b\nline [2.4s: <c>]", prompt_blend=1, image="",
        cfg=2.0, crop=0.25, crop_y=0.0, zoom=1.5, negative="blue",
    )  # fmt: skip
    Lineage((Span.of(2, replace(request, prompt="<before>")),), "parent", 2).write(folder / "lineage.json")
    for number in (1, 2):
        (folder / "thumbs" / f"{number:04}.webp").touch()
    job = job_of(request=request, folder=folder, state="queued", started=None)
    transcript = Transcript(LiveJob(job))
    transcript.then("second in the queue", jobs_first=1)
    transcript.then("third in the queue", jobs_first=2, awake=True)
    transcript.then("the queue is paused", queue_is_paused=True)
    transcript.then("waits for its model", message="No model.", remedy="Get `vae_tile`.")
    transcript.then("the disk is full", state="waiting", message="Full.", remedy="Free it.")
    transcript.then("paused", state="paused", **PAUSED, jobs_first=0, queue_is_paused=False)
    transcript.then("runs", state="running", started=2000.0, message="", remedy="")
    events = history(job, **COST)
    sections = [at for at, event in enumerate(events) if isinstance(event, SectionFinished)]
    transcript.then("paused at once", state="paused")
    transcript.then(
        "the end of what it keeps",
        StageStarted(job=ID, time=600.0, stage="decode", section=2),
        state="running",
    )
    transcript.then("is ready", replace(events[sections[1]], time=620.0))
    transcript.then("its third section", *events[sections[1] + 1 :][:5])
    transcript.then("is decoded", *events[sections[1] + 6 : sections[2]], commands=frozenset({"wait"}))
    transcript.then("is finished", events[sections[2]])
    transcript.then("waits for the user", state="paused", **WAITS)
    transcript.then(
        "was interrupted", state="interrupted", message="Ended.", remedy="Go on.", commands=frozenset()
    )
    record: dict[str, Any] = memory_record(3) | {"retries": 2, "cap_bytes": 7 * 2**30}
    record["stages"][1]["measured_bytes"] = record["stages"][-1]["predicted_bytes"] = 2**30
    (folder / "memory.json").write_text(json.dumps(record))
    message = f"`lora` {folder}/x cannot be read."
    last: dict[str, Any] = {"video": f"/elsewhere/{ID}/video.mp4", "frames": 105, "job": ID, "time": 2600.0}
    transcript.then(
        "fails", Failed(**last, message=message, remedy="Mend it."),
        state="failed", ended=4600.0, message=message, remedy="Mend it.",
    )  # fmt: skip
    assert transcript.text == snapshot


def test_kinds_of_finished_videos(tmp_path: Path, snapshot: Any) -> None:
    folder = folder_of(tmp_path)
    other = tmp_path / "outputs" / "other & more"
    other.mkdir()
    usual = job_of("inverted", 3.6, folder=folder, state="finished", ended=1100.0)
    lines = list[str]()
    last: dict[str, Any] = {}

    def tell(name: str, joined: int = 9, made: int = 9, **facts: Any) -> None:
        nonlocal last
        of_job = {key: facts.pop(key) for key in ("parent", "state") if key in facts}
        size = facts.pop("size", (96, 64))
        live = LiveJob(replace(usual, request=replace(usual.request, **facts), **of_job), None, *size)
        for section in list(live.plan)[:made]:
            frames = section.total_frames + 30 * (section.number >= joined)
            about: dict[str, Any] = {"job": ID, "video": "v.mp4", "frames": frames}
            of_section: dict[str, Any] = {
                "section": section.number,
                "sections": len(live.plan),
                "added_in_front": 36,
            }
            live.apply(SectionFinished(**about, time=1.0, **of_section))
            if section.number == len(live.plan):
                live.apply(Finished(**about, time=99.0, seconds=1, advice="Use a faster type."))
        view = scene_data(live, 2000.0, lambda _: "")
        lines.append(f"--- {name}\n{changes(last, view) if last else whole(view)}")
        last = last or view

    tell("usual")
    tell("320 pixels", size=(320, 368))
    tell("321 pixels", size=(321, 416))
    tell("ended at once", made=0, state="cancelled")
    tell("continued, but not yet joined", joined=3, made=2, video="holiday.mp4")
    tell("continued after", joined=3, video="holiday.mp4")
    tell("continued before", joined=1, video="holiday.mp4", extend="before")
    tell("continued forward", joined=1, video="holiday.mp4", mode="forward")
    tell("of which two sections are made", joined=1, made=2, video="holiday.mp4", mode="forward")
    tell("a loop", loop="on")
    tell("a loop of which two sections are made", made=2, loop="on")
    tell("of words", image="")
    tell("followed", then="enlarge:2")
    finished: dict[str, Any] = {
        "finish": "source:96x64*73@30,enlarge:2",
        "parent": "other & more",
        "video": "v.mp4",
        "mode": "forward",
    }
    tell("finished", **finished)
    (other / "video.mp4").touch()
    tell("finished of a job", **finished)
    (folder / "first.png").touch()
    tell("one frame", one_frame=9)
    tell("a model that is gone", model=str(tmp_path / "gone model"), seed=2**60, image="")
    (folder / "lineage.json").write_text("{")
    tell("a damaged lineage", prompt="a [1.2s: b]")
    assert "\n".join(lines).replace(str(tmp_path), "<tmp>") == snapshot


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("The red ball rolls!", "longtake-the-red-ball-rolls-3f9a.mp4"),
        ("", "longtake-3f9a.mp4"),
        ("Ünïcödé / ../../etc", "longtake-unicode-etc-3f9a.mp4"),
        ("雨の中", "longtake-3f9a.mp4"),
        ("word " * 30, "longtake-word-word-word-word-word-word-word-word-3f9a.mp4"),
        (f"abcde{7 * ' abcd'}", f"longtake-abcde{7 * '-abcd'}-3f9a.mp4"),
        ("x" * 90, f"longtake-{'x' * 40}-3f9a.mp4"),
    ],
)
def test_a_download_is_named_after_its_prompt(prompt: str, name: str) -> None:
    assert download_name(prompt, "20261121-081530-3f9a") == name
    assert download_name(prompt, "1-3f9a", 33) == name.replace(".mp4", "-so-far-33-frames.mp4")


def test_cards_in_every_state(snapshot: Any) -> None:
    usual = {
        "job": "", "used_bytes": 2 * 2**30, "is_in_service": True, "trouble": "", "is_used": True,
        "size": "24 GB", "away": "",
    }  # fmt: skip
    out: dict[str, Any] = {"is_in_service": False}
    changed: list[dict[str, Any]] = [
        {}, {"is_used": False}, {"job": ID}, {"job": "gone", "used_bytes": 0}, out, out | {"job": ID},
        out | {"trouble": "It died."}, out | {"away": "It is away."},
        out | {"away": "It is away.", "trouble": "It died."}, {"size": ""},
    ]  # fmt: skip
    cards = [SimpleNamespace(**usual | facts) for facts in changed]
    workers = [
        SimpleNamespace(**vars(card), is_busy=bool(card.job), card=SimpleNamespace(
            key=str(number), label=f"card {number}", size=card.size, away=card.away,
        ))
        for number, card in enumerate(cards)
    ]  # fmt: skip

    def job(job_id: str) -> Any:
        if job_id != ID:
            raise NoSuchJob(job_id)
        return job_of()

    crew = SimpleNamespace(workers=workers, uses=lambda worker: worker.is_used)
    service: Any = SimpleNamespace(crew=crew, engines=2, job=job)
    assert whole(card_lines(service)) == snapshot
    service.engines = 1
    assert card_lines(service) == []

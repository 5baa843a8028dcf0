"""Tests of the estimates in the events of a job."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.events import Event, Stage, StageStarted
from diffusers_helper.families.packing import plan_sections, with_closing_section
from diffusers_helper.machine.local import Local
from diffusers_helper.output import report as module
from diffusers_helper.output.report import Report
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.units import GB
from tests.support.answers import text_of
from tests.support.making import load_tiny, make, tiny_request

EXPECTED = {
    "attention": 99.0, "load": 20.0, "text": 3.0, "convolutions": 60.0, "vae_encode": 1.0, "sample": 200.0,
    "decode": 30.0,
}  # fmt: skip
STAGES: list[tuple[float, Stage, int | None]] = [
    (0, "write", None),  # the video that is continued
    (1, "load", None),
    (9, "text", None),
    (10, "load", None),
    (25, "convolutions", None),
    (70, "vae_encode", None),
    (80, "sample", 1),
    (390, "convolutions", None),  # for a shape of the decoder
    (400, "load", None),  # the decoder
    (401, "decode", 1),
    (420, "write", 1),
    (421, "sample", 2),
]


def foreseen(
    expected: dict[str, float], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, float, float]]:
    told: list[Event] = []
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    report = Report(JobFolder(folder), plan_sections(3.0), told.append, expected)
    for now[0], stage, section in STAGES:
        report.stage(stage, section)
    stages = [event for event in told if isinstance(event, StageStarted)]
    return [(event.stage, event.expected_seconds, event.seconds_to_video) for event in stages]


def test_each_stage_tells_how_long_it_and_its_section_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert foreseen(EXPECTED, tmp_path, monkeypatch) == [
        ("write", 0, 314),
        ("load", 20, 314),
        ("text", 3, 306),  # 8 of 20 seconds of reading are over
        ("load", 12, 303),
        ("convolutions", 60, 291),  # reading took longer than foreseen
        ("vae_encode", 1, 231),
        ("sample", 200, 230),
        ("convolutions", 60, 90),
        ("load", 0, 30),
        ("decode", 30, 30),
        ("write", 0, 0),
        ("sample", 200, 230),
    ]


def test_each_event_says_where_a_job_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    told, now = list[Event](), [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "peak_host_bytes", lambda: 5 * GB)
    plan = with_closing_section(plan_sections(2.4))
    report = Report(JobFolder(tmp_path / "job"), plan, told.append, {"attention": 9.0})
    video: Any = SimpleNamespace(shape=(48, 64), frames=0, latest=None, finish=lambda: Path("whole.mp4"))
    for done in (0, 3):
        report.trying("attention", done, 3)
    now[0] = 2.0
    report.started(video, {"load": 4.0}, "flash", "fused")
    report.warned("careful")
    for done in (1, 8):
        report.reading(done * GB, 8 * GB)
    for pieces in (1, 2):
        report.piece("decode", 1, 1, pieces)
    for now[0], section, step, skipped in (
        (10.0, 0, 1, 0), (13.0, 0, 2, 1), (14.0, 0, 3, 1), (60.0, 1, 1, 0), (61.0, 1, 2, 0), (99.0, 1, 1, 0),
        (101.0, 1, 2, 1),
    ):  # fmt: skip
        report.step(plan[section], step, 3, Path("a.webp") if step == 1 else None, skipped)
    assert report.step_seconds == [3.0, 1.0, 1.0, 2.0]
    report.cancelled()
    for section, video.frames in zip(plan, (36, 73, 109), strict=True):
        video.latest = Path(f"{section.number}.mp4")
        report.section(section)
    report.cancelled()
    assert report.finished({"retries": 1}) == Path("whole.mp4")
    assert "\n".join(text_of(event).replace(f"{tmp_path}/", "") for event in told) == snapshot


def test_a_job_is_foreseen_by_what_this_machine_has_measured(
    tiny_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    models, local = load_tiny(tiny_model), Local(folder=tmp_path / "machine")
    _, before = make(tiny_request(small_scene), models, tmp_path / "first", local=local)
    file = tmp_path / "machine" / "step_times.json"
    measured = json.loads(file.read_text())
    slower = {key: {name: 1e-6 * speed for name, speed in entry.items()} for key, entry in measured.items()}
    file.write_text(json.dumps(slower))
    _, after = make(tiny_request(small_scene), models, tmp_path / "second", local=local)
    told = [
        {event.stage: event for event in one if isinstance(event, StageStarted)} for one in (before, after)
    ]
    assert told[0]["sample"].expected_seconds == told[0]["sample"].seconds_to_video == 0
    sample, decode = told[1]["sample"], told[1]["decode"]
    assert sample.expected_seconds > 60
    assert sample.seconds_to_video == pytest.approx(
        sample.expected_seconds + decode.expected_seconds, abs=0.2
    )

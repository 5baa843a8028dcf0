"""Tests of a watched job: what its events say about progress and time, and what the page shows of it."""

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.jobs.job import Command
from app.jobs.storage.logs import append_event
from app.ui.live import words
from app.ui.live.progress import LiveJob
from app.ui.live.scene import download_name, scene_data
from app.ui.live.subscribe import watch
from diffusers_helper.events import (
    Failed,
    Finished,
    PieceDone,
    Reading,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.provenance.lineage import Lineage, Span
from tests.support.jobs import Studio
from tests.support.reported_jobs import history, job_of, slow_start


def test_a_changed_job_is_shown_with_its_new_words(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    job = studio.submit("a ball", seconds=2.4)
    scenes = watch(studio.service)
    live = next(scenes)
    assert live is not None
    assert [cell.text for cell in live.cells] == ["", ""]
    studio.service.steering.change(job.id, {"prompt": "a ball [1.2s: it stops]"})
    live = next(scenes)
    assert live is not None
    assert [cell.text for cell in live.cells] == ["a ball", "it stops"]


def test_a_page_begins_with_all_that_has_happened(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    job = studio.submit("a ball", seconds=4.8)
    for event in history(job, load=0, first=1, step=1, latent=0):
        if not isinstance(event, Finished):
            append_event(job.folder / "events.jsonl", event)
    live = next(watch(studio.service))
    assert live is not None
    assert live.sections_done == len(live.plan) == 4


def test_a_preview_leaves_with_its_section(tmp_path: Path) -> None:
    live = LiveJob(job_of("forward", 2.4, folder=tmp_path))
    for event in history(live.job, load=0, first=1, step=1, latent=0):
        is_step = isinstance(event, StepDone)
        live.apply(replace(event, preview="x.webp") if is_step else event)
        if is_step or isinstance(event, SectionFinished):
            assert live.preview == ("x.webp" if is_step else None)


def test_sections_that_a_branch_kept_have_their_pictures(tmp_path: Path) -> None:
    live = LiveJob(job_of("forward", 3.6, folder=tmp_path / "branch"))
    thumbs = tmp_path / "branch" / "thumbs"
    thumbs.mkdir(parents=True)
    for event in history(live.job, load=0, first=1, step=1, latent=0):
        if isinstance(event, SectionFinished):
            (thumbs / f"{event.section:04}.webp").touch()
            if event.section == 2:
                live.apply(event)
    shown = scene_data(live, 1000.0, lambda job: "")
    found = [cell["thumb"] and Path(cell["thumb"]).name for cell in shown["cells"]]
    assert found == ["0001.webp", "0002.webp", None]


@pytest.mark.parametrize("mode", MODES)
def test_the_sections_that_a_branch_keeps_are_made_before_it_begins(tmp_path: Path, mode: Mode) -> None:
    job = job_of(mode, 4.8, folder=tmp_path, state="queued", started=None)
    Lineage((Span.of(2, job.request),), "parent", 2).write(tmp_path / "lineage.json")

    def made(live: LiveJob) -> str:
        states = {cell.number: cell.state[0] for cell in live.cells}
        return "".join(states[number] for number in sorted(states))

    live = LiveJob(job)
    assert made(live) == "ddww"
    assert [cell["spoken"] for cell in scene_of(live)["cells"] if cell["isDone"]] == ["finished", "finished"]
    live.job = replace(job, state="running", started=1000.0)
    assert words.remark(live).endswith("then section 3 of 4.")
    hint = scene_of(live)["steering"]["hint"]
    assert f"from {'2.4 to 3.6' if mode == 'forward' else '1.2 to 2.4'} s" in hint
    live.apply(StageStarted(job=job.id, time=1.0, stage="decode", section=2))  # blended with the third
    assert made(live) == "drww"
    assert scene_of(live)["steering"]["hint"] == hint
    live.apply(SectionFinished(job=job.id, time=2.0, section=2, sections=4, video="v", frames=69))
    assert made(live) == "ddww"
    assert made(LiveJob(replace(job, state="cancelled"))) == "dd"


@pytest.mark.parametrize("mode", ["inverted", "forward"])
@pytest.mark.parametrize("seconds", [1.0, 4.8, 120.0])
def test_the_cells_lie_side_by_side_in_order_of_the_video(mode: Mode, seconds: float) -> None:
    live = LiveJob(job_of(mode, seconds))
    events = history(live.job, load=0, first=1, step=1, latent=0)
    for event in events:
        live.apply(event)
        if isinstance(event, StepDone) and event.section == 1 and event.step == 3:
            running = [place for place, cell in enumerate(live.cells) if cell.state == "running"]
            assert running == [len(live.plan) - 1 if mode == "inverted" else 0]
    cells = live.cells
    assert [cell.start for cell in cells[1:]] == [cell.end for cell in cells[:-1]]
    assert (cells[0].start, cells[-1].end) == (0.0, live.plan.seconds)
    numbers = [cell.number for cell in cells]
    assert sorted(numbers, reverse=mode == "inverted") == numbers
    assert all(cell.state == "done" for cell in cells)
    assert live.hidden_in_front == 0.0


def test_the_words_follow_the_work() -> None:
    live = LiveJob(job_of(seconds=2.4))
    reported = []
    for event in history(live.job, load=1, first=1, step=1, latent=0.1, write=0.1):
        live.apply(event)
        line = words.headline(live)
        reported += [] if reported[-1:] == [line] else [line]
    assert reported[:2] == ["Starting the engine", "Loading the model"]
    assert reported[2] == "First step: one-time kernel setup"
    assert reported[3:5] == ["Section 1 of 2, step 1 of 25", "Section 1 of 2, step 2 of 25"]
    assert "Decoding section 1 of 2" in reported
    assert "Decoding section 1 of 2, part 2 of 3" in reported
    assert "Writing section 2 of 2" in reported
    live.apply(StageStarted(job=live.job.id, time=60, stage="decode", section=2))
    live.sections_done = 1
    live.apply(PieceDone(job=live.job.id, time=61, stage="decode", section=2, piece=3, pieces=6))
    assert words.headline(live) == "Decoding section 2 of 2, part 3 of 6"
    assert words.section_activity(live) == "decoding, part 3 of 6"
    live.apply(StageStarted(job=live.job.id, time=62, stage="write", section=2))
    assert words.headline(live) == "Writing section 2 of 2"
    queued = LiveJob(job_of(state="queued", started=None))
    assert words.headline(queued) == "Waiting for its turn"
    for queued.jobs_first, words_first in ((2, "2 jobs"), (1, "1 job")):
        assert words.headline(queued) == f"Waiting for its turn ({words_first} first)"
    queued.queue_is_paused = True
    assert words.headline(queued) == "Waiting until the queue is resumed"


@pytest.mark.parametrize(
    ("stage", "waits_for"),
    [("sample", "step being computed"), ("decode", "part being decoded"), ("load", "current work")],
)
def test_after_a_cancel_it_says_what_is_waited_for(stage: Any, waits_for: str) -> None:
    live = LiveJob(job_of())
    live.apply(StageStarted(job=live.job.id, time=1.0, stage=stage, section=1))
    endings: dict[Command, str] = {"cancel": "Ending", "pause": "Pausing"}
    for command, ending in endings.items():
        live.commands = frozenset({command})
        assert words.headline(live) == f"{ending}: the {waits_for} is finished first"


@pytest.mark.parametrize("mode", MODES)
def test_cells_of_a_video_from_words_alone_meet_where_its_sections_do(mode: Mode) -> None:
    job = job_of(mode, 3.6)
    frames = [round(30 * border) for cell in LiveJob(job).cells for border in (cell.start, cell.end)]
    assert frames == [0, 36, 36, 72, 72, 109]
    bare = replace(job, request=replace(job.request, image=""))
    frames = [round(30 * border) for cell in LiveJob(bare).cells for border in (cell.start, cell.end)]
    assert frames == [0, 33, 33, 69, 69, 105]


def test_each_cell_has_the_words_of_its_section(tmp_path: Path) -> None:
    folder = tmp_path / "20261121-081530-3f9a"
    folder.mkdir()
    request = replace(job_of("forward", 3.6).request, prompt="a [2.4s: b]", prompt_blend=1)
    job = job_of(request=request, folder=folder)
    assert [cell.text for cell in LiveJob(job).cells] == ["a", "a", "b, 50 % new words"]
    assert scene_of(LiveJob(job))["cells"][0]["spoken"] == "waiting; a"
    kept = replace(request, prompt="<c>", prompt_blend=0)
    Lineage((Span.of(1, kept),)).write(folder / "lineage.json")
    assert [cell.text for cell in LiveJob(job).cells] == ["<c>", "a", "b, 50 % new words"]
    (folder / "lineage.json").write_text("{")
    assert {cell.text for cell in LiveJob(job).cells} == {""}
    assert {cell.text for cell in LiveJob(job_of()).cells} == {""}


def test_silence_is_measured_by_the_pace_of_this_job() -> None:
    live = LiveJob(job_of())
    events = history(live.job, load=1, first=12, step=12, latent=0.5)
    for event in events[:10]:
        live.apply(event)
    assert words.usual_duration(live) == ("a step usually takes 12 s", 12.0)
    for event in events[10:]:
        live.apply(event)
        if live.sections_done == 1 and live.stage == "decode":
            break
    assert words.usual_duration(live) == ("decoding a section usually takes 7.5 s", pytest.approx(7.5))


def scene_of(live: LiveJob, now: float = 1010.0, **facts: Any) -> dict[str, Any]:
    for name, value in facts.items():
        setattr(live, name, value)
    shown = scene_data(live, now, lambda job: f"report of {job.id}")
    assert json.loads(json.dumps(shown, allow_nan=False)) == json.loads(json.dumps(shown))
    return shown


def test_a_running_job_as_the_page_gets_it() -> None:
    live = LiveJob(job_of())
    for event in history(live.job, load=1, first=1, step=1, latent=0.1)[:40]:
        live.apply(event)
    for message in ("Not <known>.", "Lost /o/x/y.bin.", "Not <known>.", "Lost /mnt/private stuff/y.bin."):
        live.apply(Warned(job=live.job.id, time=live.last_sign, message=message))
    shown = scene_of(live, now=1000 + live.last_sign + 3)
    assert shown["prompt"] == "a <b>ball</b>"
    assert shown["quiet"] == 3
    assert shown["calm"] >= 8
    assert shown["warnings"][:2] == ["Not <known>. (2 times)", "Lost outputs/x/y.bin."]
    assert "/mnt" not in shown["warnings"][2]
    assert shown["video"]["url"] == f"jobs/{live.job.id}/video-0001.mp4?v=33"
    assert shown["video"]["hidden"] == pytest.approx((181 - 33) / 30, abs=1e-3)
    ending = scene_of(live, commands=frozenset({"cancel"}))
    assert ending["headline"].startswith("Ending: ")
    assert (
        scene_of(live, commands=frozenset({"stop_after_section"}))["remark"]
        == "It ends after the current section."
    )
    assert "failure" not in shown
    assert "figures" not in shown


@pytest.mark.parametrize("mode", ["inverted", "forward"])
def test_a_job_that_ends_in_the_middle_of_a_section_is_shown_before_its_last_event_is_read(
    mode: Mode, tmp_path: Path
) -> None:
    preview = tmp_path / "preview.png"
    preview.write_bytes(b"the picture")
    live = LiveJob(job_of(mode))
    for event in history(live.job, load=1, first=1, step=1, latent=0.1):
        live.apply(replace(event, preview=str(preview)) if isinstance(event, StepDone) else event)
        if isinstance(event, StepDone) and (event.section, event.step) == (2, 3):
            break
    making = next(cell for cell in live.cells if cell.number == 2)
    data = b64encode(b"the picture").decode()
    label = f"{making.start:.1f} – {making.end:.1f} s"
    assert scene_of(live)["preview"] == {
        "data": f"data:image/png;base64,{data}", "label": label, "seconds": pytest.approx(1.2, abs=0.05),
    }  # fmt: skip
    live.job = replace(live.job, state="cancelled", ended=1050.0)
    shown = scene_of(live)
    assert shown["preview"] is None
    assert [cell["number"] for cell in shown["cells"]] == [1]
    assert "/video-0001.mp4" in shown["video"]["url"]


def test_the_page_gets_the_time_of_each_stage_of_a_first_job_with_its_estimate() -> None:
    live, told = LiveJob(job_of()), dict[str, tuple[Any, ...]]()
    for event in slow_start(live.job):
        live.apply(event)
        shown = scene_of(live, now=1000 + live.last_sign + 12)
        facts = tuple(shown[name] for name in ("spent", "expected", "expectedText", "due", "left"))
        if isinstance(event, StageStarted):
            told[event.stage] = facts
        elif isinstance(event, StepDone):  # steps tell that the engine lives
            steps = (shown["expected"], shown["remark"])
            assert steps == (None, "This first video shows how fast the machine is.")
        assert shown["percent"] <= 99
    assert told == {
        "attention": (12, 60, "about 1 min", "", None),
        "load": (12, 60, "about 1 min", "first part in about 6 min", None),
        "text": (12, 60, "about 1 min", "first part in about 5 min", None),
        "convolutions": (12, 60, "about 1 min", "first part in about 4 min", None),
        "vae_encode": (12, 60, "about 1 min", "first part in about 3 min", None),
        "sample": (12, 0, "", "first part in about 2 min", pytest.approx(700, abs=50)),
        "decode": (12, 60, "about 1 min", "first part in about 50 s", pytest.approx(700, abs=50)),
    }
    assert (facts[1], facts[3]) == (None, "")  # there is a first part, and the whole time is told from now on
    assert shown["headline"] == "Section 1 of 5 is finished"
    assert facts[4] > 300


def test_a_finished_job_tells_where_the_time_went() -> None:
    live = LiveJob(job_of())
    for event in history(live.job, load=10, first=2, step=2, latent=0.1):
        live.apply(event)
    live.apply(
        Finished(job=live.job.id, time=400, video="/v.mp4", frames=181, seconds=1, peak_host_bytes=2**31)
    )
    live.job = replace(live.job, state="finished", ended=1400.0)
    figures = scene_of(live)["figures"]
    stages = {stage["name"]: stage for stage in figures["stages"]}
    assert stages["Denoising"]["text"] == "4 min 10 s"
    assert stages["Denoising"]["share"] == 1.0
    assert stages["Loading the model"]["share"] == pytest.approx(10 / 250)
    assert ("Engine in main memory", "at most 2 GB") in figures["facts"]
    assert scene_of(live)["took"] == "took 6 min 40 s"


def test_a_failed_job_comes_with_its_report_and_keeps_its_video() -> None:
    live = LiveJob(job_of())
    for event in history(live.job, load=1, first=1, step=1, latent=0.1)[:40]:
        live.apply(event)
    live.apply(
        Failed(job=live.job.id, time=9, message="Broken.", remedy="Mend it.", video="/o/v.mp4", frames=33)
    )
    live.job = replace(live.job, state="failed", ended=1100.0, message="Broken.", remedy="Mend it.")
    shown = scene_of(live)
    assert shown["failure"] == {
        "message": "Broken.", "remedy": "Mend it.", "report": f"report of {live.job.id}",
    }  # fmt: skip
    assert shown["video"]["url"].endswith("v.mp4?v=33")


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("The red ball rolls!", "longtake-the-red-ball-rolls-3f9a.mp4"),
        ("", "longtake-3f9a.mp4"),
        ("Ünïcödé / ../../etc", "longtake-unicode-etc-3f9a.mp4"),
        ("雨の中", "longtake-3f9a.mp4"),
        ("word " * 30, "longtake-word-word-word-word-word-word-word-word-3f9a.mp4"),
        ("x" * 90, f"longtake-{'x' * 40}-3f9a.mp4"),
    ],
)
def test_a_download_is_named_after_its_prompt(prompt: str, name: str) -> None:
    assert download_name(prompt, "20261121-081530-3f9a") == name
    assert download_name(prompt, "1-3f9a", 33) == name.replace(".mp4", "-so-far-33-frames.mp4")


def test_the_reading_of_a_model_is_told_by_bytes_until_the_model_is_loaded() -> None:
    live = LiveJob(job_of())
    live.apply(StageStarted(job="j", time=0.0, stage="load"))
    assert words.headline(live) == "Loading the model"
    live.apply(Reading(job="j", time=1.0, done_bytes=3 * 2**30, total_bytes=40 * 2**30))
    assert words.headline(live) == "Reading the model: 3 of 40 GB"
    live.apply(Reading(job="j", time=9.0, done_bytes=40 * 2**30, total_bytes=40 * 2**30))
    assert words.headline(live) == "Loading the model"
    # A network that is used later may have to be read between two other stages.
    live.apply(StageStarted(job="j", time=10.0, stage="text"))
    live.apply(StageStarted(job="j", time=12.0, stage="load"))
    live.apply(Reading(job="j", time=13.0, done_bytes=2 * 2**30, total_bytes=24 * 2**30))
    assert words.headline(live) == "Reading the model: 2 of 24 GB"
    live.apply(StageStarted(job="j", time=20.0, stage="sample", section=1))
    assert words.headline(live) == "First step: one-time kernel setup"


@pytest.mark.parametrize(("mode", "extend", "joined"), [
    ("forward", "after", 1), ("inverted", "after", 3), ("inverted", "before", 4),
])  # fmt: skip
def test_the_cells_of_a_continued_video_lie_behind_the_one_that_it_continues(
    mode: Mode, extend: str, joined: int
) -> None:
    """The old footage, 1 s long, is in front of what can be watched from a section on; or behind it."""
    job = job_of(mode, 3.6)
    request = replace(job.request, video="holiday.mp4", extend=extend)
    live = LiveJob(replace(job, request=request))
    for section in live.plan:
        has_old = joined <= section.number or extend == "before"
        live.apply(
            SectionFinished(
                job=job.id, time=float(section.number), section=section.number, sections=3,
                video="v.mp4", frames=section.total_frames + 30 * has_old,
            )
        )  # fmt: skip
        begin = 1.0 if joined <= section.number else 0.0
        assert [round(cell.start, 3) for cell in live.cells] == [begin, 1.2 + begin, 2.4 + begin]
        assert live.cells[-1].end == pytest.approx(begin + live.plan.seconds)
    assert live.hidden_in_front == 0.0


def test_one_frame_is_shown_as_a_picture(tmp_path: Path) -> None:
    job = job_of("inverted", folder=tmp_path)
    request = replace(job.request, one_frame=9)
    (tmp_path / "first.png").write_bytes(b"picture")
    live = LiveJob(replace(job, request=request, state="finished", started=0.0, ended=1.0))
    live.apply(SectionFinished(job=job.id, time=1.0, section=1, sections=1, video="video.mp4", frames=1))
    data = scene_data(live, 2.0, lambda _: "")
    assert data["cells"] == []
    assert data["remark"] == "One picture"
    assert data["video"]["isPicture"]
    assert not data["continues"]
    assert data["poster"] == data["video"]["file"] == data["first"] != data["video"]["url"]

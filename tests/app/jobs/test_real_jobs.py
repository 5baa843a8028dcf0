"""Tests of the whole path from command line to video, with real model classes at tiny size."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as imageio
import pytest

from diffusers_helper.events import (
    Cancelled,
    Event,
    Finished,
    JobStarted,
    SectionFinished,
    StageStarted,
    StepDone,
)
from tests.support.jobs import TIMEOUT, RealStudio, processes_in_group, wait_until
from tests.support.program import Program, check_contract, until

SETTINGS = ["--seconds", "1", "--steps", "2", "--prompt", "a red ball moves left"]


def frames_of(video: Path) -> tuple[int, int, int]:
    """Return the number of decodable frames, the width and the height."""
    frames, height, width, _ = imageio.imread(video, plugin="pyav").shape
    return frames, width, height


@pytest.fixture
def program(tmp_path: Path, tiny_model: Path) -> Iterator[Program]:
    program = Program(tmp_path, tiny_model)
    yield program
    program.end()


@pytest.mark.slow
def test_the_command_line_makes_a_video_the_same_with_and_without_a_process(program: Program) -> None:
    made = []
    for place in [], ["--in-process"]:
        arguments = ["--image", "picture.png", "--model", str(program.model), "--out", "videos", *SETTINGS]
        code, out, err = program.run("generate", "--json", *place, *arguments)
        assert code == 0, err
        assert err == ""  # no library speaks up, such as about a torchvision that nothing needs
        events = check_contract(out.splitlines())
        assert (events[0]["frames"], events[-1]["frames"]) == (37, 37)
        video = Path(events[-1]["video"])
        assert frames_of(video) == (37, events[0]["width"], events[0]["height"])
        stages = [event["stage"] for event in events if event["event"] == "stage_started"]
        expected = ["load", "text", "vae_encode", "vision", "sample", "decode", "write"]
        assert stages == expected
        made.append(video.read_bytes())
    assert made[0] == made[1]


@pytest.mark.slow
def test_a_signal_while_networks_compute_leaves_a_whole_video(program: Program) -> None:
    process = program.start(
        "generate", "--json", "--image", "picture.png", "--model", str(program.model), "--out", "videos",
        "--prompt", "a red ball", "--seconds", "12", "--steps", "4",
    )  # fmt: skip
    until(process, "section_finished", 2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert b"Traceback" not in err
    # On a busy machine, the killed engine may need longer to give its memory back than the program waits.
    wait_until(lambda: not processes_in_group(process.pid))
    end = json.loads(out.splitlines()[-1])
    assert end["event"] == "cancelled"
    assert frames_of(Path(end["video"]))[0] == end["frames"] >= 69
    assert not list(program.outputs.rglob("*.tmp"))


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[RealStudio]:
    studio = RealStudio(tmp_path_factory.mktemp("studio"), tiny_model)
    yield studio
    studio.service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["load", "text", "vae_encode", "vision", "sample", "decode", "write"])
def test_a_cancel_in_any_stage_ends_the_job_and_leaves_the_video_so_far(
    studio: RealStudio, stage: str
) -> None:
    section = 2 if stage in ("sample", "decode", "write") else None
    steps = 100 if section else 3  # a busy machine hears of it some steps later
    job = studio.submit("a red ball", seconds=4.8, steps=steps).id
    is_cancelled = False
    shown: SectionFinished | None = None
    steps_after = 0
    end: Event | None = None
    for end in (item[1] for item in studio.service.follow(job) if item is not None):
        if isinstance(end, SectionFinished):
            shown = end
        if is_cancelled and isinstance(end, StepDone):
            steps_after += 1
        # Only the first job loads the model; the cancel then comes with the first event.
        is_there = isinstance(end, StageStarted) and (end.stage, end.section) == (stage, section)
        if not is_cancelled and (is_there or (stage == "load" and isinstance(end, JobStarted))):
            is_cancelled = studio.service.queue.cancel(job)
            assert is_cancelled
    assert isinstance(end, Cancelled)
    assert is_cancelled
    assert steps_after < steps if section else steps_after <= 1
    assert end.frames == (shown.frames if shown else 0)
    assert bool(shown) == (section is not None)
    if shown:
        assert end.video is not None
        assert frames_of(Path(end.video))[0] == shown.frames
    assert studio.service.job(job).state == "cancelled"


@pytest.mark.slow
def test_after_all_those_cancels_the_same_engine_finishes_a_job(studio: RealStudio) -> None:
    pid = studio.engine.pid
    end = studio.events(studio.submit("a red ball", seconds=1, steps=1))[-1]
    assert isinstance(end, Finished)
    assert frames_of(Path(end.video))[0] == 37
    assert pid is None or studio.engine.pid == pid

"""Tests of engines on a device: what they hold and leave behind, and how they share and lose a card."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from app.commands.generate import InProcessEngine
from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied, EngineProcess
from app.jobs.service import JobService
from app.machine import cache_folder
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import Event, Finished, StepDone, Warned
from diffusers_helper.job import card
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import GenerationRequest
from tests.support.forked_engine import Forks
from tests.support.gpu import DEVICES, SLACK_BYTES, held_bytes, on_gpu
from tests.support.jobs import ROOT, STAND_IN, TIMEOUT, wait_until, write_picture
from tests.support.making import make
from tests.support.pages import PageProgram

BAD_DRIVER = ROOT / "tests" / "support" / "bad_driver"


@pytest.fixture(params=DEVICES)
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forks: Forks
) -> str:
    """Return the device on which the engines that the test starts compute, with a driver that may fail."""
    if request.param == "cpu":  # let the engines compute there, also where there is a GPU
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            monkeypatch.setenv(name, "")
        forks.replace(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", search_path(str(BAD_DRIVER)))
    monkeypatch.setenv("BAD_DRIVER_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr("app.jobs.making.worker._RETRY_SECONDS", 0.1)
    return request.param


def search_path(*first: str) -> str:
    """Return a PYTHONPATH with these folders before the repository and those that are there already."""
    return os.pathsep.join((*first, str(ROOT), os.environ.get("PYTHONPATH", "")))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[JobService]:
    service = JobService(tmp_path / "outputs")
    yield service
    service.stop()


def submit(service: JobService, folder: Path, model: Path, **settings: Any) -> Job:
    given = {"prompt": "a red ball", "seconds": 1.0, "steps": 2, **settings}
    image = str(write_picture(folder / "picture.png"))
    return service.queue.add(GenerationRequest(image=image, model=str(model), **given), allow_folder=True)


def events_of(service: JobService, job: Job) -> list[Event]:
    return [item[1] for item in service.follow(job.id) if item is not None]


def test_a_killed_engine_leaves_nothing_on_the_device(
    device: str, service: JobService, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":  # the memory of any process goes back, so a stand-in for the work is enough
        monkeypatch.setenv("PYTHONPATH", search_path(STAND_IN))
    before, slack, engine = held_bytes(device), SLACK_BYTES if device == "cuda" else 0, EngineProcess()
    job = submit(service, tmp_path, tiny_model, prompt="fault=wait at=1 steps=2", seconds=120, steps=100)
    events = engine.run(job)
    assert any(isinstance(event, StepDone) for event in events)
    pid = engine.pid
    assert held_bytes(device, pid) > before + slack
    engine.kill()
    with pytest.raises(EngineDied):
        list(events)
    wait_until(lambda: held_bytes(device, pid) <= before + slack)
    engine.close()


@on_gpu
def test_the_driver_too_sees_the_engine_under_its_cap(
    service: JobService, deep_model: Path, tmp_path: Path
) -> None:
    """Ask the driver, which also counts what torch does not see: the context and the libraries' memory."""
    before, engine, over = held_bytes("cuda"), EngineProcess(), threading.Event()
    held: list[int] = []

    def watch() -> None:
        while not over.wait(0.002):
            held.append(held_bytes("cuda") - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        *_, end = engine.run(submit(service, tmp_path, deep_model, vram_cap_gb=2.0))
    finally:
        over.set()
        watcher.join()
        engine.close()
    assert isinstance(end, Finished)
    assert SLACK_BYTES < max(held) <= end.cap_bytes


@pytest.mark.parametrize("name", DEVICES)
def test_a_card_is_had_by_one_program_at_a_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = torch.device(name)
    with card.card_alone(torch.device("cpu"), tmp_path), card.card_alone(torch.device("cpu"), tmp_path):
        assert list(tmp_path.iterdir()) == []  # any number of programs may share a CPU
    if name == "cpu":
        monkeypatch.setattr(card, "card_name", lambda device: "card-1")
    with card.card_alone(where, tmp_path):
        with pytest.raises(LongtakeError) as caught, card.card_alone(where, tmp_path):
            pass
        assert caught.value.code == "card_busy"
        assert caught.value.message.startswith("Another Longtake program is making a video on this card")
        with card.card_alone(where, None):
            pass
    with card.card_alone(where, tmp_path):
        pass


@pytest.mark.slow
def test_a_job_waits_for_a_card_that_another_program_has(
    device: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cpu":
        monkeypatch.setattr(card, "card_name", lambda device: "card-1")
    service = JobService(tmp_path / "outputs", InProcessEngine() if device == "cpu" else EngineProcess())
    with card.card_alone(torch.device(device), cache_folder()):
        service.start()
        job = submit(service, tmp_path, tiny_model)
        while (waiting := service.job(job.id)).state != "waiting":  # it is tried again and again
            service.wait(service.changes)
        assert waiting.message.startswith("Another Longtake program is making a video")
        assert "Programs with one outputs folder share a queue." in waiting.remedy
    assert isinstance(events_of(service, job)[-1], Finished)
    service.stop()


@pytest.mark.slow
def test_a_job_goes_on_after_the_loss_of_its_card(
    device: str, service: JobService, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lose it in the second of two steps: the engine ends, and the next one makes the section again."""
    monkeypatch.setenv("BAD_DRIVER_FAULT", "lose")
    service.start()
    job = submit(service, tmp_path, tiny_model)
    events = events_of(service, job)
    assert isinstance(events[-1], Finished), events[-1]
    assert (tmp_path / "calls").read_bytes() == b"x"
    (warned,) = [event.message for event in events if isinstance(event, Warned)]
    assert "while denoising section 1. It was restarted from section 1" in warned
    assert [event.step for event in events if isinstance(event, StepDone)] == [1, 1, 2]
    models = load_models(find_model(str(tiny_model), allow_folder=True), device=device)
    make(job.request, models, tmp_path / "undisturbed")
    kept = (next(folder.glob("sections/*")) for folder in (job.folder, tmp_path / "undisturbed"))
    found, expected = (load_file(file)["latents"] for file in kept)
    assert torch.allclose(found, expected, atol=1e-4)


def frames_of(video: Path) -> np.ndarray:
    return imageio.imread(video, plugin="pyav", format="gray").astype(float)


def shift_of(first: np.ndarray, last: np.ndarray) -> int:
    """Return by how many pixels the content has moved to the right, as far as 24."""
    width = first.shape[1]

    def distance(shift: int) -> float:
        left, right = max(0, shift), min(width, width + shift)
        return float(np.abs(last[:, left:right] - first[:, left - shift : right - shift]).mean())

    return min(range(-24, 25), key=distance)


def check_pan(video: Path) -> None:
    frames = frames_of(video)
    assert len(frames) >= 60
    assert frames.std() > 10
    assert shift_of(frames[0], frames[len(frames) // 4]) > 0


@on_gpu
def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_readme(tmp_path, monkeypatch)


def run_readme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command line and the program of the README as they stand there, with a picture of ours."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    Image.open(ROOT / "assets/examples/the-red-ball-moves-right.png").convert("RGB").save(
        folder / "photo.jpg"
    )
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.chdir(folder)
    command = re.search(r"^\.venv/bin/longtake (generate .+)$", readme, flags=re.MULTILINE)
    done = subprocess.run(
        f"{sys.executable} -m app {command[1]}", shell=True, capture_output=True, text=True,
        timeout=5 * TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_pan(Path(done.stdout.splitlines()[-1]))
    pytest.importorskip("gradio_client")
    program = PageProgram(folder)
    try:
        code = readme.partition("```python\n")[2].partition("```")[0]
        made: dict[str, Any] = {}
        exec(code.replace("http://127.0.0.1:7860", program.wait_until_up()), made)
        assert len(frames_of(Path(made["video"]))) >= 60
    finally:
        program.end()

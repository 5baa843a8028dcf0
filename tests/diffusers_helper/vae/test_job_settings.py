"""Tests that each setting of the VAE has its effect on a job, and that the automatic ones change nothing."""

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.events import Event, Finished, PieceDone, Warned
from diffusers_helper.job.memory import MemoryPlans
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.device import Device
from diffusers_helper.units import GB
from tests.support.making import make, tiny_request, write_scene

SIDE = 128


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene") / "scene.png", SIDE, SIDE)


@pytest.fixture(scope="module")
def automatic(picture: Path, models: Models, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the video of a job whose VAE is left to the machine. Tests only read it."""
    return run(picture, models, tmp_path_factory.mktemp("jobs") / "automatic")[0]


def run(picture: Path, models: Models, folder: Path, **settings: Any) -> tuple[bytes, list[Event]]:
    request = tiny_request(picture, resolution=SIDE, steps=1, **settings)
    result, events = make(request, models, folder, local=Local(folder=folder.parent / "facts"))
    return result.video.read_bytes(), events


def pieces(events: list[Event]) -> int:
    return sum(isinstance(event, PieceDone) and event.stage == "decode" for event in events)


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.slow
def test_the_automatic_values_are_todays(
    picture: Path, models: Models, tmp_path: Path, automatic: bytes
) -> None:
    defaults = {"vae_tile": 256, "vae_precision": "fp32", "vae_chunk": 3, "vae_threshold": 1}
    assert run(picture, models, tmp_path / "job", **defaults)[0] == automatic


def plan_bytes(picture: Path, models: Models, **settings: Any) -> int:
    request = tiny_request(picture, resolution=SIDE, **settings)
    return MemoryPlans(request, models, SIDE, SIDE, Local()).plan.stage("decode").working_bytes


def test_the_chunk_and_the_precision_are_planned_with(picture: Path, models: Models) -> None:
    need = [plan_bytes(picture, models, vae_chunk=chunk) for chunk in (1, 3, 8)]
    assert need == sorted(set(need))
    assert need[1] == plan_bytes(picture, models)
    assert plan_bytes(picture, models, vae_precision="bf16") < 0.75 * need[1]


@pytest.mark.slow
def test_a_lower_threshold_takes_smaller_tiles_and_says_what_they_cost(
    picture: Path, models: Models, tmp_path: Path
) -> None:
    plans = MemoryPlans(tiny_request(picture, resolution=SIDE), models, SIDE, SIDE, Local())
    cap = plans.plan.peak_bytes / GB
    _, events = run(picture, models, tmp_path / "whole", vram_cap_gb=cap)
    assert finished(events).vae_tile_px == 256
    _, events = run(picture, models, tmp_path / "half", vram_cap_gb=cap, vae_threshold=0.5)
    assert finished(events).vae_tile_px in (64, 96)
    (reported,) = [event.message for event in events if isinstance(event, Warned)]
    assert "This changes the pixels slightly." in reported


@pytest.mark.slow
def test_a_clean_up_gives_memory_back_and_changes_no_pixel(
    picture: Path, models: Models, tmp_path: Path, automatic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Device, "empty_cache", lambda self: calls.append("cleaned"))
    video, events = run(picture, models, tmp_path / "job", vae_cleanup=2)
    assert video == automatic
    assert len(calls) == pieces(events) // 2 + 1 > 1  # the last one at the end of the job

"""A driver that fails at a convolution: the job ends in the same pixels, the next one asks it no more."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from app.jobs.engine_client import EngineProcess
from app.jobs.patience import Patience
from app.jobs.service import JobService
from diffusers_helper.events import Event, Finished, StageStarted, Warned
from diffusers_helper.request import GenerationRequest
from tests.support.clips import read
from tests.support.drivers import TEXTS
from tests.support.jobs import ROOT, write_picture

DRIVER = Path(__file__).parents[2] / "support" / "bad_driver"
# Longer than anything a tiny model does, on any machine.
SILENCE = 15.0


class Studio:
    """A service over a real engine."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.engine = EngineProcess()
        self.service = JobService(folder / "outputs", self.engine, Patience(shortest=SILENCE, first=SILENCE))
        self.service.start()
        self._model, self._picture = model, write_picture(folder / "picture.png")

    def make(self) -> tuple[list[Event], Path]:
        """A job of two sections: its events and its folder."""
        request = GenerationRequest(
            image=str(self._picture), prompt="a red ball", seconds=2.4, steps=1, model=str(self._model)
        )
        job = self.service.submit(request, allow_folder=True)
        return [item[1] for item in self.service.follow(job.id) if item is not None], job.folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The folder of a job that nothing happened to."""
    studio = Studio(tmp_path_factory.mktemp("undisturbed"), tiny_model)
    events, folder = studio.make()
    studio.service.stop()
    assert isinstance(events[-1], Finished)
    return folder


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What counts the failing calls. Routes are learned in a folder of the test's own."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(DRIVER), str(ROOT))))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BAD_DRIVER_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def studio(tmp_path: Path, tiny_model: Path, calls: Path) -> Iterator[Studio]:
    studio = Studio(tmp_path, tiny_model)
    yield studio
    studio.service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise", "abort", "sleep"])
def test_another_way_gives_the_same_pixels_and_the_next_engine_knows_it(
    fault: str, studio: Studio, calls: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_DRIVER_FAULT", fault)
    events, folder = studio.make()
    assert isinstance(events[-1], Finished), events[-1]
    assert calls.read_bytes() == b"x"
    restarts = [event.message for event in events if isinstance(event, Warned)]
    assert len(restarts) == (fault != "raise")
    assert all("computed another way" in text for text in restarts)
    kept = [sorted((made_in / "sections").iterdir()) for made_in in (folder, undisturbed)]
    for one, other in zip(*kept, strict=True):
        assert torch.equal(load_file(one)["latents"], load_file(other)["latents"])
    made, expected = read(folder / "video.mp4").astype(int), read(undisturbed / "video.mp4").astype(int)
    assert made.shape == expected.shape
    # Before they are encoded, the pixels differ by 1 of 255 at most; the encoder's choices may then differ.
    assert np.abs(made - expected).mean() < 0.2
    assert np.abs(made - expected).max() <= 32
    studio.engine.close()
    again, _ = studio.make()
    assert isinstance(again[-1], Finished)
    assert calls.read_bytes() == b"x"
    assert not [event for event in again if isinstance(event, Warned)]


@pytest.mark.slow
def test_a_kill_inside_a_convolution_changes_no_byte(
    studio: Studio, calls: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_DRIVER_FAULT", "kill")
    events, folder = studio.make()
    assert isinstance(events[-1], Finished), events[-1]
    assert calls.read_bytes() == b"x"
    assert sum(isinstance(event, Warned) for event in events) == 1
    begun = Counter((event.stage, event.section) for event in events if isinstance(event, StageStarted))
    again = {place for place, count in begun.items() if count > 1}
    assert again == {("load", None), ("decode", 1)}  # what was computed is computed once
    assert (folder / "video.mp4").read_bytes() == (undisturbed / "video.mp4").read_bytes()


@pytest.mark.slow
def test_every_known_error_at_shapes_of_its_own_gives_the_same_pixels(
    studio: Studio, calls: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_DRIVER_FAULT", "texts")
    monkeypatch.setenv("BAD_DRIVER_TEXTS", json.dumps(list(TEXTS)))
    events, folder = studio.make()
    assert isinstance(events[-1], Finished), events[-1]
    failed = len(calls.read_bytes())
    assert failed >= len(TEXTS)
    made, expected = read(folder / "video.mp4").astype(int), read(undisturbed / "video.mp4").astype(int)
    assert made.shape == expected.shape
    assert np.abs(made - expected).mean() < 0.2
    # Again with the engine that has seen the errors, then with one that has only read of them.
    assert isinstance(studio.make()[0][-1], Finished)
    studio.engine.close()
    assert isinstance(studio.make()[0][-1], Finished)
    assert len(calls.read_bytes()) == failed

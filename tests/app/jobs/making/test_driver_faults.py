"""Tests of a driver that fails at a convolution: the pixels stay the same, and the next job avoids the call.

Frames are compared before they are encoded. Two ways to compute a convolution round differently, by an amount
that depends on the processor; a pixel may tip to the next level, and then the encoder makes other choices.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from app.jobs.making.watchdog import WatchdogTimeouts
from app.jobs.service import JobService
from diffusers_helper.events import Event, Failed, Finished, StageStarted, Warned
from tests.support.drivers import TEXTS
from tests.support.jobs import ROOT, RealStudio

DRIVER = Path(__file__).parents[3] / "support" / "bad_driver"


class Watchful(WatchdogTimeouts):
    """Patience that ends once, when the driver has fallen asleep, however fast the machine is."""

    def __init__(self, calls: Path) -> None:
        super().__init__()
        self.calls, self.has_ended = calls, False

    def limit(self, kind: str, *, load: bool = False, compiles: bool = False) -> float:
        is_asleep = os.environ.get("BAD_DRIVER_FAULT") == "sleep" and self.calls.exists()
        before, self.has_ended = self.has_ended, is_asleep
        if is_asleep and not before:
            return 0.0
        return WatchdogTimeouts.limit(self, kind, load=load, compiles=compiles)


class Studio(RealStudio):
    """A service over a real engine with the bad driver."""

    def __init__(self, folder: Path, model: Path, timeouts: WatchdogTimeouts | None = None) -> None:
        self._timeouts = timeouts
        self._cache, self._frames = folder / "cache", folder / "frames"
        self._frames.mkdir()
        super().__init__(folder, model)

    def open(self) -> JobService:
        return JobService(self.outputs, self.engine, timeouts=self._timeouts)

    def make(self, **settings: Any) -> tuple[list[Event], Path, np.ndarray]:
        """Run a job of two sections; return its events, its folder, and its frames before encoding."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join((str(DRIVER), str(ROOT))))
            patch.setenv("XDG_CACHE_HOME", str(self._cache))  # the folder of learned routes
            patch.setenv("BAD_DRIVER_FRAMES", str(self._frames))
            job = self.submit("a red ball", **{"seconds": 2.4, "steps": 1, **settings})
            events = self.events(job)
        sections = sorted(self._frames.iterdir(), reverse=True)  # the end of the video is generated first
        frames = [np.load(section) for section in sections]
        for section in sections:
            section.unlink()
        return events, job.folder, np.concatenate(frames) if frames else np.empty(0)


def check_pixels(made: np.ndarray, expected: np.ndarray) -> None:
    """Assert that no pixel differs by more than the rounding to one of 255 levels, and few by that."""
    assert made.shape == expected.shape == (73, 48, 64, 3)
    assert expected.std() > 10
    difference = np.abs(made.astype(int) - expected)
    assert difference.max() <= 1
    assert difference.mean() < 0.001


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Path, np.ndarray]:
    """Return the folder and the frames of a job that nothing disturbed."""
    studio = Studio(tmp_path_factory.mktemp("undisturbed"), tiny_model)
    events, folder, frames = studio.make()
    studio.service.stop()
    assert isinstance(events[-1], Finished)
    return folder, frames


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that has a byte for each failing call."""
    monkeypatch.setenv("BAD_DRIVER_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def studio(tmp_path: Path, tiny_model: Path, calls: Path) -> Iterator[Studio]:
    studio = Studio(tmp_path, tiny_model, Watchful(calls=calls))
    yield studio
    studio.service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raise", "abort", "sleep", "flat abort"])  # flat: the vision encoder's
def test_another_way_gives_the_same_pixels_and_the_next_engine_knows_it(
    fault: str,
    studio: Studio,
    calls: Path,
    undisturbed: tuple[Path, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BAD_DRIVER_FAULT", fault)
    events, folder, frames = studio.make()
    assert isinstance(events[-1], Finished), events[-1]
    assert calls.read_bytes() == b"x"  # of several engines that may die in a job, at most one did
    (warned,) = [event.message for event in events if isinstance(event, Warned)]
    assert ("differ only by rounding (about 55 dB)" if fault == "raise" else "computed another way") in warned
    whole, expected_frames = undisturbed
    if fault == "flat abort":
        made, expected = (load_file(path / "encodings.safetensors")["vision"] for path in (folder, whole))
        assert torch.allclose(made, expected, atol=1e-5)
    else:
        for file in (folder / "sections").iterdir():
            made, expected = (load_file(path) for path in (file, whole / "sections" / file.name))
            assert torch.equal(made["latents"], expected["latents"])
    check_pixels(frames, expected_frames)
    studio.engine.close()
    again, _, _ = studio.make()
    assert isinstance(again[-1], Finished)
    assert calls.read_bytes() == b"x"
    assert not [event for event in again if isinstance(event, Warned)]


@pytest.mark.slow
def test_a_kill_inside_a_convolution_changes_no_byte(
    studio: Studio, calls: Path, undisturbed: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_DRIVER_FAULT", "kill")
    events, folder, frames = studio.make()
    assert isinstance(events[-1], Finished), events[-1]
    assert calls.read_bytes() == b"x"
    assert sum(isinstance(event, Warned) for event in events) == 1
    begun = Counter((event.stage, event.section) for event in events if isinstance(event, StageStarted))
    again = {place for place, count in begun.items() if count > 1}
    assert again == {("load", None), ("decode", 1)}  # nothing is computed twice
    assert (folder / "video.mp4").read_bytes() == (undisturbed[0] / "video.mp4").read_bytes()
    assert np.array_equal(frames, undisturbed[1])


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])  # a job has fewer shapes than there are known errors
def test_every_known_error_at_shapes_of_its_own_gives_the_same_pixels(
    half: int,
    studio: Studio,
    calls: Path,
    undisturbed: tuple[Path, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = list(TEXTS)[half::2]
    monkeypatch.setenv("BAD_DRIVER_FAULT", "texts")
    monkeypatch.setenv("BAD_DRIVER_TEXTS", json.dumps(texts))
    events, _, frames = studio.make()
    assert isinstance(events[-1], Finished), events[-1]
    failed = len(calls.read_bytes())
    assert failed >= len(texts)
    check_pixels(frames, undisturbed[1])
    studio.engine.close()  # the next one has only read about the errors
    assert isinstance(studio.make()[0][-1], Finished)
    assert len(calls.read_bytes()) == failed


@pytest.mark.slow
def test_however_many_shapes_are_blocked_two_engines_die_and_the_next_job_loses_none(
    studio: Studio, calls: Path, undisturbed: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_DRIVER_FAULT", "large")
    monkeypatch.setenv("BAD_DRIVER_SIDE", "20")
    events, _, frames = studio.make()
    assert isinstance(events[-1], Finished), events[-1]
    deaths = len(calls.read_bytes())
    assert deaths == 2
    assert sum(isinstance(event, Warned) for event in events) == deaths
    check_pixels(frames, undisturbed[1])
    studio.engine.close()
    assert isinstance(studio.make()[0][-1], Finished)
    assert len(calls.read_bytes()) == deaths


HSA = "HSA exception: MemoryRegion::BlockAllocator::alloc failed."
LARGE: dict[str, Any] = {"resolution": 128, "seconds": 1.0}


@pytest.mark.slow
def test_engines_that_die_for_lack_of_memory_lead_to_the_picture_of_the_smallest_tile(
    studio: Studio, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, _, expected = studio.make(**LARGE, vae_tile=64)
    assert isinstance(events[-1], Finished), events[-1]
    monkeypatch.setenv("BAD_DRIVER_FAULT", "large")
    monkeypatch.setenv("BAD_DRIVER_SIDE", "96")
    monkeypatch.setenv("BAD_DRIVER_SAYS", f"{HSA}\n")
    studio.engine.close()
    events, folder, frames = studio.make(**LARGE)
    assert isinstance(events[-1], Finished), events[-1]
    assert calls.read_bytes() == b"xx"
    warned = [event.message for event in events if isinstance(event, Warned)]
    assert any("the VAE works in tiles of 64 pixels instead of 256" in text for text in warned)
    assert sum(f"after the words “{HSA}”" in text for text in warned) == 2
    assert not any("computed another way" in text for text in warned)
    assert (folder / "engine_errors.txt").read_text().count(HSA) == 2
    assert np.array_equal(frames, expected)
    studio.engine.close()
    assert isinstance(studio.make(**LARGE)[0][-1], Finished)
    assert calls.read_bytes() == b"xx"


@pytest.mark.slow
def test_the_guide_appears_where_the_smallest_plan_dies_too(
    studio: Studio, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_DRIVER_FAULT", "large")
    monkeypatch.setenv("BAD_DRIVER_SIDE", "8")
    monkeypatch.setenv("BAD_DRIVER_SAYS", f"{HSA}\n")
    events, _, _ = studio.make(**LARGE)
    end = events[-1]
    assert isinstance(end, Failed)
    assert calls.read_bytes() == b"xxx"
    assert end.code == "out_of_memory"
    assert end.message == f"The device's memory ran out, and a smaller plan did not help: {HSA}"
    assert end.remedy.startswith("1. Raise `preserved_gb`")
    assert end.remedy.splitlines()[-1].startswith("9. Check that PyTorch and ROCm")
    assert end.detail.count(HSA) >= 3

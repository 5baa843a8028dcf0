"""Tests that a job whose engine is killed at random moments gives the same video, byte for byte."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from diffusers_helper.events import Event, Finished, JobStarted, SectionFinished, StageStarted, Warned
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture

SECTIONS = 6
# Each kill costs a few seconds for another start of the engine. `LONGTAKE_TEST_KILLS=20` asks for more kills.
KILLS = int(os.environ.get("LONGTAKE_TEST_KILLS", "2"))


class Studio:
    """A service over the real engine and a tiny model."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.engine = EngineProcess()
        self.service = JobService(folder / "outputs", self.engine)
        self.service.start()
        self._model, self._picture = model, write_picture(folder / "picture.png")

    def events(self, mode: str) -> Iterator[Event]:
        settings = {
            "image": str(self._picture),
            "prompt": "a red ball",
            "seconds": SECTIONS * 1.2,
            "steps": 2,
        }
        request = GenerationRequest.from_dict({**settings, "mode": mode, "model": str(self._model)})
        job = self.service.queue.add(request, allow_folder=True)
        return (item[1] for item in self.service.follow(job.id) if item is not None)

    def disturbed(self, mode: str, kills: int) -> list[Event]:
        """Run a job whose engine is killed each time after a random number of signs of life."""
        chance = random.Random(5)
        made: list[Event] = []
        left, wait = kills, chance.randrange(1, 20)
        for event in self.events(mode):
            made.append(event)
            wait -= 1
            if left and wait <= 0 and not isinstance(event, Warned | Finished):
                assert self.engine.pid is not None
                os.kill(self.engine.pid, signal.SIGKILL)
                left, wait = left - 1, chance.randrange(1, max(2, 4 * 6 * SECTIONS // kills))
        return made


@pytest.fixture
def studio(tmp_path: Path, tiny_model: Path) -> Iterator[Studio]:
    studio = Studio(tmp_path, tiny_model)
    yield studio
    studio.service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["inverted", "forward"])
def test_killed_at_random_moments_a_job_gives_the_same_bytes(studio: Studio, mode: str) -> None:
    *_, whole = studio.events(mode)
    assert isinstance(whole, Finished)
    events = studio.disturbed(mode, KILLS)
    end = events[-1]
    assert isinstance(end, Finished), end
    restarts = [event for event in events if isinstance(event, Warned) and "restarted" in event.message]
    assert 1 <= len(restarts) <= KILLS
    assert Path(end.video).read_bytes() == Path(whole.video).read_bytes()
    folder, other = Path(end.video).parent, Path(whole.video).parent
    assert len(list((folder / "sections").iterdir())) == SECTIONS
    assert sum(isinstance(event, JobStarted) for event in events) == 1
    finished = [event for event in events if isinstance(event, SectionFinished)]
    assert [event.section for event in finished] == list(range(1, SECTIONS + 1))
    # Finished work is not computed again: only a section that was under way is sampled again.
    sampled = [
        event.section for event in events if isinstance(event, StageStarted) and event.stage == "sample"
    ]
    assert len(sampled) <= SECTIONS + KILLS
    assert sampled == sorted(sampled)
    assert not list(folder.rglob("*.tmp"))
    for kind in ("sections", "segments", "thumbs"):
        names = [sorted(path.name for path in (made_in / kind).iterdir()) for made_in in (folder, other)]
        assert names[0] == names[1]

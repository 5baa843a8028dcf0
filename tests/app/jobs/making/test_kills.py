"""Tests that a job whose engine is killed at random moments gives the same video, byte for byte."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.events import Event, Finished, JobStarted, SectionFinished, StageStarted, Warned
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.machine.packages import kitchen_problem
from diffusers_helper.models.registry import find_model
from tests.support.jobs import RealStudio

SECTIONS = 4
# Each kill costs a few seconds for another start of the engine. `LONGTAKE_TEST_KILLS=20` asks for more kills.
KILLS = int(os.environ.get("LONGTAKE_TEST_KILLS", "2"))


class Killer(RealStudio):
    """A service over a tiny model, whose engine is killed, with the kernels that it can choose."""

    def made(self, mode: str) -> Iterator[Event]:
        family = find_model(str(self.model), allow_folder=True).family
        own: dict[str, Any] = {"seconds": SECTIONS * 1.2, "attention": "sliced"}
        own["kernels"] = "plain" if kitchen_problem() else "fused"
        if family is not FRAMEPACK:
            own = {"seconds": SECTIONS * 33 / 24, "resolution": 64}
        job = self.submit("a red ball", mode=mode, steps=2, **own)
        return (item[1] for item in self.service.follow(job.id) if item is not None)

    def disturbed(self, mode: str, kills: int) -> list[Event]:
        """Run a job whose engine is killed each time after a random number of signs of life."""
        chance = random.Random(5)
        made: list[Event] = []
        left, wait = kills, chance.randrange(1, 20)
        for event in self.made(mode):
            made.append(event)
            wait -= 1
            if left and wait <= 0 and not isinstance(event, Warned | Finished):
                assert self.engine.pid is not None
                try:
                    os.kill(self.engine.pid, signal.SIGKILL)
                except ProcessLookupError:  # the event came from an engine that is being replaced
                    continue
                left, wait = left - 1, chance.randrange(1, max(2, 24 * SECTIONS // kills))
        return made


@pytest.fixture
def studio(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killer]:
    studio = Killer(tmp_path, request.getfixturevalue(request.param))
    yield studio
    studio.service.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("studio", "mode"),
    [("tiny_model", "inverted"), ("tiny_helios_distilled", "forward")],
    indirect=["studio"],
)
def test_killed_at_random_moments_a_job_gives_the_same_bytes(studio: Killer, mode: str) -> None:
    *_, whole = studio.made(mode)
    assert isinstance(whole, Finished)
    events = studio.disturbed(mode, KILLS)
    end = events[-1]
    assert isinstance(end, Finished), end
    restarts = [event for event in events if isinstance(event, Warned) and "restarted" in event.message]
    assert 1 <= len(restarts) <= KILLS
    assert Path(end.video).read_bytes() == Path(whole.video).read_bytes()
    folder, other = Path(end.video).parent, Path(whole.video).parent
    if mode == "inverted":
        assert (folder / "attention").read_text().startswith("sliced ")
        assert kitchen_problem() or (folder / "kernels").read_text().startswith(
            "fused kernels of comfy-kitchen"
        )
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

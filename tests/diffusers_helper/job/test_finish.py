"""Tests of the job that finishes a video: its frames, its recipe, and the same bytes after interruptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.footage import all_frames
from diffusers_helper.conditions.pictures import store_request, stored_request
from diffusers_helper.conditions.sources import with_sources
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import (
    Cancelled,
    Event,
    Finished,
    JobStarted,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.job.finish import finish
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.recipe import Recipe, read_recipe
from diffusers_helper.request import GenerationRequest
from tests.support.clips import scene, write
from tests.support.films import BT709, facts_of, write_film

CLIP = scene(73)


class Killed(BaseException):
    """Ends a job without a word, as a kill does."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("source"), CLIP, "forward")


def submitted(folder: Path, source: Path, steps: str, **settings: str) -> GenerationRequest:
    """Return the request as an engine finds it in the job's folder."""
    folder.mkdir(exist_ok=True)
    files = JobFolder(folder)
    request = with_sources(GenerationRequest(video=str(source), finish=steps, **settings), [])
    store_request(request, {}, files, final_folder=files)
    return stored_request(files.request.read_bytes(), files)


def killed_after(kind: type[Event], number: int) -> Callable[[Event], None]:
    count = iter(range(1, 1000))

    def listen(event: Event) -> None:
        if isinstance(event, kind) and next(count) == number:
            raise Killed

    return listen


def test_a_killed_finishing_continues_with_the_same_bytes(source: Path, tmp_path: Path) -> None:
    steps = "trim:0.2-,speed:0.5,loop,smooth:48"
    events = list[Event]()
    whole = finish(submitted(tmp_path / "whole", source, steps), tmp_path / "whole", on_event=events.append)
    (started,) = (event for event in events if isinstance(event, JobStarted))
    finished = [event for event in events if isinstance(event, SectionFinished)]
    assert len(finished) == started.sections == 8
    assert (started.frames, finished[-1].frames) == (422, 422)  # 67 frames to and fro at 15 per second
    steps_done = [event for event in events if isinstance(event, StepDone)]
    assert [event.step for event in steps_done if event.section == 1] == [*range(1, steps_done[0].steps + 1)]
    assert steps_done[0].preview
    stages = [(event.stage, event.section) for event in events if isinstance(event, StageStarted)]
    assert stages == [
        ("finish", None),
        *((stage, number) for number in range(1, 9) for stage in ("finish", "write")),
    ]
    assert isinstance(events[-1], Finished)

    request = submitted(tmp_path / "again", source, steps)
    with pytest.raises(Killed):
        finish(request, tmp_path / "again", on_event=killed_after(StepDone, 100))
    with pytest.raises(Killed):
        finish(request, tmp_path / "again", on_event=killed_after(SectionFinished, 1))
    token, rest = CancelToken(), list[Event]()

    def listen(event: Event) -> None:
        rest.append(event)
        if isinstance(event, StepDone):
            token.cancel()

    with pytest.raises(GenerationCancelled):
        finish(request, tmp_path / "again", on_event=listen, cancel=token)
    assert isinstance(rest[-1], Cancelled)
    assert next(event.section for event in rest if isinstance(event, StepDone)) == 3
    assert finish(request, tmp_path / "again").read_bytes() == whole.read_bytes()
    assert facts_of(whole) == (422, 48, Fraction(422, 48), BT709)


def test_a_video_is_enlarged_at_its_own_rate_and_cut_to_even_sides(tmp_path: Path) -> None:
    rate = Fraction(30000, 1001)
    odd = write_film(tmp_path / "odd.mp4", [*scene(5, 33, 31)], rate=rate, form="yuv444p")  # type: ignore[arg-type]
    video = finish(submitted(tmp_path / "job", odd, "enlarge:3"), tmp_path / "job")
    assert facts_of(video) == (5, rate, 5 / rate, BT709)
    first = np.asarray(next(all_frames(video, 30)))
    assert first.shape == (98, 92, 3)
    nearest = scene(5, 33, 31)[0].repeat(3, 0).repeat(3, 1)[:98, :92]
    assert np.abs(first.astype(int) - nearest).mean() < 12


def test_the_recipe_of_a_finished_video_makes_the_whole_chain_again(source: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.mp4"
    request = GenerationRequest(prompt="a ball", seed=7, resolution=64)
    recipe = Recipe.of(request, (), (), model="demo", side=64, made_with={"device": "cpu"}, pictures={})
    with av.open(own, "w") as output, av.open(source) as film:
        output.metadata["comment"] = recipe.to_json()
        stream = output.add_stream_from_template(film.streams.video[0])
        for packet in film.demux(film.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                output.mux(packet)
    first = finish(submitted(tmp_path / "a", own, "trim:-0.5"), tmp_path / "a")
    second = finish(submitted(tmp_path / "b", first, "speed:2"), tmp_path / "b")
    chain = read_recipe(second)
    assert chain.settings["then"] == "trim:-0.5\nspeed:2"
    assert replace(chain.request({}), then="") == request

    foreign = finish(submitted(tmp_path / "c", source, "join:3,speed:2", join=str(source)), tmp_path / "c")
    recipe = read_recipe(foreign)
    assert {name: recipe.settings.get(name) for name in ("finish", "then", "video", "join")} == {
        "finish": "join:3,speed:2", "then": None, "video": None, "join": None,
    }  # fmt: skip
    assert "other files for join" in recipe.notices[0]


def test_what_is_lost_is_said(source: Path, tmp_path: Path) -> None:
    folder, notes = tmp_path / "job", list[Event]()
    finish(submitted(folder, source, "trim:-0.1,reverse"), folder, on_event=notes.append)
    assert not [event for event in notes if isinstance(event, Warned)]
    request = json.loads((folder / "request.json").read_bytes())
    sound = request | {"finish": request["finish"].replace("@30", "@30+sound")}
    finish(GenerationRequest.from_dict(sound), tmp_path / "sound", on_event=notes.append)
    assert [event.message for event in notes if isinstance(event, Warned)] == [
        "The sound is left out, since it cannot follow reverse, to and fro, or another speed."
    ]

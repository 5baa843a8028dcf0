"""Tests that another family of models needs only its own two halves: its numbers, and its work on tensors."""

import io
import json
import shutil
import tokenize
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from torch import Tensor

from diffusers_helper import pipeline
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import Mode, Section, SectionPlan, frame_indices
from diffusers_helper.families.registry import FAMILIES
from diffusers_helper.framepack import work as framepack
from diffusers_helper.framepack.history import LatentHistory
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Join
from diffusers_helper.models.registry import find_model, plan_of
from diffusers_helper.output.previews import to_uint8
from tests.support.making import load_tiny, make, tiny_request, write_scene

WINDOW, FRAMES, RATE = 5, 17, 24


def plan(seconds: float, mode: Mode, *, has_picture: bool = True) -> SectionPlan:
    count = max(1, round(seconds * RATE / FRAMES))
    sections = tuple(_section(number, number == count) for number in range(1, count + 1))
    return SectionPlan(mode, WINDOW, sections, RATE, FRAMES)


def _section(number: int, has_start: bool) -> Section:
    return Section(
        number=number, has_start=has_start, indices=frame_indices("forward", WINDOW), decode_latents=WINDOW,
        total_frames=FRAMES * number, video_index=number - 1, decode_start=WINDOW * (number - 1),
    )  # fmt: skip


class MadeHistory(LatentHistory):
    """A history that begins with a latent that no picture gives, and that is no part of the video."""

    def __init__(self, start: Tensor) -> None:
        super().__init__("forward", torch.zeros_like(start))
        self.latents = start[:, :, :0]

    def to_decode(self, section: Section) -> Tensor:
        return self.latents[:, :, -WINDOW:]


def joiner(job: OpenJob) -> Join:
    assert job.request.mode == "forward"

    def join(frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        assert len(frames) == section.decoded_frames
        return to_uint8(frames), to_uint8(frames[:0])

    return join


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> MadeHistory:
    return MadeHistory(encodings["start"])


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = replace(
        FRAMEPACK.layer_names, layers={}, other_names={}
    )  # LoRAs of FramePack are not this family's
    family = replace(FRAMEPACK, name="fake", fps=RATE, plan=plan, layer_names=names)
    work: Any = SimpleNamespace(**{**vars(framepack), "history": history, "joiner": joiner})
    monkeypatch.setitem(FAMILIES, family.name, family)
    monkeypatch.setitem(pipeline.WORK, family.name, work)
    folder = tmp_path / "fake"
    shutil.copytree(tiny_model, folder)
    facts = folder / "longtake.json"
    known = json.loads(facts.read_text()) if facts.exists() else {}
    facts.write_text(json.dumps(known | {"family": "fake", "modes": ["forward"]}))
    return folder


def test_another_family_makes_its_video_in_the_same_loop(model: Path, tmp_path: Path) -> None:
    request = tiny_request(write_scene(tmp_path / "scene.png"), model=str(model), mode="forward", seconds=2.1)
    assert [len(plan_of(request)), plan_of(request).seconds] == [3, 51 / 24]
    straight, _ = make(request, load_tiny(model), tmp_path / "straight")
    assert (straight.frames, straight.latents.shape[2]) == (51, 15)
    with av.open(straight.video) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.frames) == (RATE, 51)
    # A job that lost its last section makes that one again, with the same bytes.
    shutil.copytree(tmp_path / "straight", tmp_path / "resumed")
    (tmp_path / "resumed/sections/0003.safetensors").unlink()
    (tmp_path / "resumed/video-0003.mp4").unlink()
    resumed, _ = make(request, load_tiny(model), tmp_path / "resumed", resume_from=tmp_path / "resumed")
    assert torch.equal(resumed.latents, straight.latents)
    assert resumed.video.read_bytes() == straight.video.read_bytes()


@pytest.mark.parametrize(
    ("name", "rooms"),
    [
        ("wan", ["wan/", "families/wan", "families/helios"]),
        ("helios", ["helios/", "families/helios", "wan/", "families/wan"]),
    ],
)
def test_a_family_is_named_in_three_modules_outside_of_its_rooms(name: str, rooms: list[str]) -> None:
    """Count what a further family has to touch: the tables of both halves, and of the estimates."""
    root = Path(pipeline.__file__).parents[1]
    names = {
        path.relative_to(root).as_posix()
        for folder in ("app", "cache", "diffusers_helper", "rocm_nodes")
        for path in (root / folder).rglob("*.py")
        if any(
            token.string.lower() in (name, f'"{name}"')
            for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
            if token.type in (tokenize.NAME, tokenize.STRING) and "\n" not in token.string
        )
    }
    outside = {
        one for one in names if not one.startswith(tuple(f"diffusers_helper/{room}" for room in rooms))
    }
    assert outside <= {
        "diffusers_helper/families/registry.py", "diffusers_helper/pipeline.py",
        "diffusers_helper/planning/estimates.py",
    }  # fmt: skip


def test_a_family_that_is_not_known_is_refused(model: Path) -> None:
    (model / "longtake.json").write_text('{"family": "unknown"}')
    with pytest.raises(
        InputError, match="family 'unknown'; expected one of framepack, helios, wan, wan-a14b, fake"
    ):
        find_model(str(model), allow_folder=True)


def test_the_plan_of_a_model_that_is_gone_is_that_of_framepack(tmp_path: Path) -> None:
    request = tiny_request(tmp_path / "scene.png", model=str(tmp_path / "gone"), seconds=3.6)
    assert plan_of(request) == FRAMEPACK.plan(3.6, request.mode)

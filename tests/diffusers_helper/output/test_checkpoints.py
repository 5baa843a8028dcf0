"""Tests of the checkpoints of a job, without a model: which are used again, and which are made anew."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffusers_helper.errors import LongtakeError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.output import checkpoints
from diffusers_helper.output.checkpoints import Checkpoints, Origins, SavedSteps, read_tensors, write_tensors
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.request import GenerationRequest
from tests.diffusers_helper.test_settings_matter import PIXELS

REQUEST = GenerationRequest(image="x", prompt="a ball", seconds=3.6)
# What these change is in the facts that `OpenJob.load` adds, or in the pictures, or is no matter of latents.
IN_FACTS = {"image", "end_image", "resolution", "picture_shape", "lora", "video", "extend", "crf"}


def origins(request: GenerationRequest, lineage: Lineage = Lineage(), **facts: str) -> Origins:  # noqa: B008
    return Origins(request, lineage, {"picture": "of the start"}, FRAMEPACK, **facts)


def all_origins(request: GenerationRequest) -> list[dict[str, str]]:
    made = origins(request)
    return [made.of_encodings(), *map(made.of_section, range(1, len(FRAMEPACK.sections(request)) + 1))]


@pytest.mark.parametrize("name", PIXELS)
def test_each_setting_that_changes_pixels_is_part_of_an_origin(name: str) -> None:
    base, change = PIXELS[name]
    before, after = (replace(REQUEST, **{**base, **more}) for more in ({}, change))
    assert (all_origins(before) == all_origins(after)) == (name in IN_FACTS)


def test_the_origin_of_a_section_follows_from_all_that_was_decided_before_it() -> None:
    parent = replace(REQUEST, seed=1, guidance=3.0)
    branch = Lineage((Span.of(1, parent),), "parent", 1)
    plain, own = origins(REQUEST), origins(REQUEST, branch)
    assert own.of_section(1).items() <= origins(parent).of_section(1).items()
    assert "earlier" not in own.of_section(1)
    (earlier,) = json.loads(own.of_section(2)["earlier"])
    assert (earlier["sections"], earlier["settings"]["seed"]) == (1, 1)
    assert {*plain.of_section(2)} - {*own.of_section(2)} == {"vae_tile", "vae_precision", "vae_chunk"}
    assert "vae_tile" in origins(REQUEST, replace(branch, kept=0)).of_section(2)
    assert (own.of_encodings()["seed"], plain.of_encodings()["seed"]) == ("1", str(REQUEST.seed))
    assert "negative" in origins(replace(REQUEST, cfg=2.0)).of_section(1).keys() - plain.of_section(1).keys()
    assert origins(REQUEST, size="64x64").of_section(3)["size"] == "64x64"
    forward, led = replace(REQUEST, mode="forward"), replace(REQUEST, mode="forward", end_image="y")
    lengths = [origins(request).of_section(1).get("sections") for request in (REQUEST, forward, led)]
    assert lengths == ["3", None, "3"]  # a plain forward section is the same in a longer video


# ---- files --------------------------------------------------------------------------------------------


def latents(number: int) -> Tensor:
    return torch.full((1, 2, 3), float(number))


class Run:
    """One run of a job in a folder, which lists the sections that it computes."""

    def __init__(self, folder: Path, earlier: Path | None, request: GenerationRequest = REQUEST) -> None:
        for path in filter(None, (folder, earlier)):
            path.mkdir(exist_ok=True)
        self.folder, self.made = JobFolder(folder), list[object]()
        self.store = Checkpoints(self.folder, origins(request), earlier and JobFolder(earlier))

    def section(self, number: int) -> Tensor:
        return self.store.section(number, compute=lambda: self.made.append(number) or latents(number))

    def encodings(self) -> dict[str, Tensor]:
        return self.store.encodings(compute=lambda: self.made.append("text") or {"text_0": latents(0).mT})

    def all(self) -> list[object]:
        self.encodings()
        for number in (1, 2, 3):
            assert torch.equal(self.section(number), latents(number))
        return self.made


ALL: list[object] = ["text", 1, 2, 3]


def change_metadata(file: Path, **changes: Any) -> None:
    tensors, metadata = read_tensors(file)
    del metadata["checksum"]
    write_tensors(file, tensors, {**metadata, **{name: json.dumps(value) for name, value in changes.items()}})


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"x")


DAMAGED_2 = "The kept latents of section 2 are damaged, so it is made again."


@pytest.mark.parametrize(
    ("harm", "expected", "warnings"),
    [
        (lambda job: None, [], []),
        (lambda job: damage(job.latents(2)), [2, 3], [DAMAGED_2]),
        (lambda job: job.latents(3).replace(job.latents(2)), [2, 3], [DAMAGED_2]),
        (lambda job: job.latents(2).unlink(), [2, 3], []),
        (lambda job: damage(job.encodings), ["text"], []),
        (lambda job: change_metadata(job.encodings, versions={"torch": "1"}), ["text"], []),
        (lambda job: change_metadata(job.encodings, origin={"seed": "1"}), ["text"], []),
        (
            lambda job: change_metadata(job.latents(2), versions={"torch": "1"}), [],
            ["The first sections were made with torch 1; the rest may differ slightly."],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_place", [True, False])
def test_what_is_whole_and_of_the_same_origin_is_not_made_again(
    harm: Callable[[JobFolder], object],
    expected: list[object],
    warnings: list[str],
    in_place: bool,
    tmp_path: Path,
) -> None:
    first = Run(tmp_path / "first", None)
    assert first.all() == ALL
    harm(first.folder)
    again = Run(tmp_path / ("first" if in_place else "again"), tmp_path / "first")
    assert again.store.warnings == warnings
    assert again.all() == expected
    third = Run(again.folder.path, again.folder.path)
    assert third.all() == []
    assert third.store.warnings == (warnings if in_place and not expected else [])


def test_latents_of_another_origin_are_refused(tmp_path: Path) -> None:
    first = Run(tmp_path / "first", None)
    first.all()
    for name, value in (("seed", REQUEST.seed + 1), ("vae_chunk", REQUEST.vae_chunk + 1)):
        words = rf"made with {name} '{getattr(REQUEST, name)}'; expected '{value}'"
        with pytest.raises(LongtakeError, match=words):
            Run(tmp_path / "again", tmp_path / "first", replace(REQUEST, **{name: value}))
    for name, words in (
        ("weights", "The files of its model changed"),
        ("lora", "A LoRA, or its weight, changed"),
    ):
        change_metadata(first.folder.latents(1), origin={**origins(REQUEST).of_section(1), name: "other"})
        with pytest.raises(LongtakeError, match=words):
            Run(tmp_path / "again", tmp_path / "first")


def test_carried_frames_are_written_once_and_a_finished_section_ends_its_saved_steps(tmp_path: Path) -> None:
    def carried(run: Run, frames: Tensor | None = None) -> float:
        frames = run.store.carried(1, frames)
        return -1 if frames is None else frames[0, 0, 0].item()

    run = Run(tmp_path / "job", None)
    run.section(1)
    assert carried(run) == -1
    assert carried(run, latents(7)) == 7
    assert carried(run, latents(8)) == 7
    again = Run(tmp_path / "job", tmp_path / "job")
    again.section(1)
    assert carried(again) == 7
    again.folder.saved_steps.touch()
    again.section(1)
    assert again.folder.saved_steps.exists()
    again.section(2)
    assert not again.folder.saved_steps.exists()


def test_the_state_within_a_section_is_stored_from_time_to_time_for_the_same_section_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])
    store = Run(tmp_path / "job", None).store
    saved = store.saved_steps(2)
    for seconds, value, expected in ((119.9, 1, None), (0.1, 2, 2), (119.9, 3, 2), (0.1, 4, 4)):
        clock[0] += seconds
        saved.keep({"x": latents(value)})
        stored = store.saved_steps(2).read()
        assert (stored and stored["x"][0, 0, 0].item()) == expected
    assert store.saved_steps(3).read() is None
    assert Run(tmp_path / "job", None, replace(REQUEST, seed=1)).store.saved_steps(2).read() is None
    monkeypatch.setattr(checkpoints, "versions", lambda: {"torch": "1"})
    assert store.saved_steps(2).read() is None
    monkeypatch.undo()
    damage(saved.file)
    assert store.saved_steps(2).read() is None
    assert SavedSteps(tmp_path / "nothing", {}).read() is None

"""Tests of a person's own networks for enlarging: which file a name means, and what it computes."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.footage import all_frames
from diffusers_helper.conditions.pictures import store_request
from diffusers_helper.conditions.sources import with_sources
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import Event, SectionFinished
from diffusers_helper.finish import enlarge
from diffusers_helper.finish.enlarge import Enlarge, Tiled
from diffusers_helper.finish.step import Workshop
from diffusers_helper.finish.upscale_models import find_upscale_model, upscale_folder
from diffusers_helper.job import upscale_model
from diffusers_helper.job.finish import finish
from diffusers_helper.job.upscale_model import _spandrel, load_upscale_model
from diffusers_helper.machine.local import Local
from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from diffusers_helper.runner import Runner
from tests.support.clips import scene
from tests.support.films import write_film
from tests.support.upscale_models import BT709, body, enlarged_by, needs_spandrel, write_network

CPU = torch.device("cpu")
LADDER = initialize_miopen_fallback()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "upscale_models"
    write_network(folder / "tiny.safetensors", body())
    return folder


def test_a_name_means_a_file_of_the_folder_alone(tmp_path: Path, folder: Path) -> None:
    for name in ("sub/4x.v2.safetensors", "LOUD.SAFETENSORS", ".hidden.safetensors", "old.pth"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (tmp_path / "outside.safetensors").write_bytes(b"outside")
    names = {
        "tiny": "tiny.safetensors", "tiny.safetensors": "tiny.safetensors",
        "sub/4x.v2": "sub/4x.v2.safetensors", "LOUD.SAFETENSORS": "LOUD.SAFETENSORS",
    }  # fmt: skip
    for name, file in names.items():
        path, word = find_upscale_model(name, [folder])
        assert path == folder / file
        assert find_upscale_model(word, [folder]) == (path, word)
    assert find_upscale_model("sub/4x.v2", [folder])[1] == "sub/4x.v2@b23be4ab"
    for name in ("../outside", str(tmp_path / "outside"), ".hidden", "4x.v2", "old.safetensors"):
        with pytest.raises(InputError) as refusal:
            find_upscale_model(name, [folder])
        assert str(refusal.value) == (
            f"The folder upscale_models has no network {name}; there are animevideov3, x4plus, "
            "LOUD.SAFETENSORS, sub/4x.v2.safetensors, tiny.safetensors. "
            "Put a safetensors file there, without a space in its name."
        )
    for name in ("old", "old.pth"):
        with pytest.raises(InputError, match=r"old\.pth could run a program when it is read"):
            find_upscale_model(name, [folder])
    first = tmp_path / "first"
    write_network(first / "tiny.safetensors", body(seed=2))
    assert find_upscale_model("tiny", [first, folder])[0] == first / "tiny.safetensors"
    assert find_upscale_model("LOUD.SAFETENSORS", [first, folder])[0] == folder / "LOUD.SAFETENSORS"


def test_the_folder_is_chosen_like_that_for_loras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert upscale_folder({}) == tmp_path / "upscale_models"
    assert upscale_folder({"LONGTAKE_UPSCALE_MODELS": "/srv/models"}) == Path("/srv/models")


def test_its_packages_are_asked_for_and_those_of_ncnn_are_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enlarge, "_PACKAGES", ("no_ncnn",))
    monkeypatch.setattr(enlarge, "_OWN_PACKAGES", ("no_spandrel",))
    with pytest.raises(LongtakeError, match="needs no-spandrel") as refusal:
        Enlarge(2, "tiny").prepared([folder])
    assert refusal.value.remedy.endswith(" -m pip install --no-deps no-spandrel")
    monkeypatch.setattr(enlarge, "_OWN_PACKAGES", ())
    prepared = Enlarge(2, "tiny").prepared([folder])
    assert prepared.weights == find_upscale_model("tiny", [folder])[1]
    with pytest.raises(LongtakeError, match="needs no-ncnn"):
        Enlarge(2).prepared([folder])


@needs_spandrel
def test_a_frame_is_what_the_network_computes(folder: Path) -> None:
    frame = scene(1)[0]
    result = enlarged_by(body(), frame)
    network, scale = load_upscale_model([folder], LADDER, CPU, "tiny")
    part = np.ascontiguousarray(frame.transpose(2, 0, 1), np.float32) / 255
    before = torch.get_rng_state()
    assert scale == 2
    assert np.allclose(network(part), result, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), before)
    for factor in (2, 3, 4):
        enlarged = Tiled(network, scale, factor, 32, 400).enlarged(frame)
        assert np.array_equal(enlarged, enlarge._true_to(frame, 255 * result, factor))
        reduced = np.asarray(Image.fromarray(enlarged).resize((96, 64), Image.Resampling.BOX))
        assert np.abs(reduced.astype(int) - frame).mean() < 1.5


@needs_spandrel
def test_tiles_of_a_small_card_have_no_seams(folder: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (130, 150, 3), np.uint8)
    notes = list[str]()
    load = partial(load_upscale_model, [folder], LADDER, CPU)
    workshop = Workshop(lambda source, indices: {}, notes.append, 0, load)
    small, large = (Enlarge(2, "tiny")._network(None, replace(workshop, cap_bytes=cap)) for cap in (0, 2**40))
    assert (small.tile, large.tile, notes) == (64, 400, [])
    assert np.abs(small.enlarged(noise).astype(int) - large.enlarged(noise)).max() <= 1


@needs_spandrel
def test_its_convolutions_go_through_the_ladder(folder: Path) -> None:
    handler = initialize_miopen_fallback(rung="tiles")
    assert handler.ladder
    network, _ = load_upscale_model([folder], handler, CPU, "tiny")
    frame = scene(1)[0]
    part = np.ascontiguousarray(frame.transpose(2, 0, 1), np.float32) / 255
    assert np.allclose(network(part), enlarged_by(body(), frame), atol=1e-5)
    assert handler.ladder.attempts["tiles"] == 8
    handler.remove()


def test_noise_that_a_network_adds_is_the_same_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noisy(nn.Module):
        purpose, input_channels, output_channels, scale = "SR", 3, 3, 1

        @property
        def model(self) -> nn.Module:
            return self

        def forward(self, picture: torch.Tensor) -> torch.Tensor:
            return picture + torch.rand_like(picture)

    loader = SimpleNamespace(load_from_file=lambda path: Noisy())
    spandrel = SimpleNamespace(ModelLoader=lambda: loader, UnsupportedModelError=KeyError)
    monkeypatch.setattr(upscale_model, "_spandrel", lambda: spandrel)
    network, _ = load_upscale_model([folder], LADDER, CPU, "tiny")
    part = np.zeros((3, 8, 8), np.float32)
    assert network(part).std() > 0.2
    first = network(part)
    with torch.random.fork_rng([]):
        torch.rand(1)  # as another job does
        assert np.array_equal(network(part), first)


@needs_spandrel
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (body(scale=1), "x.safetensors does not enlarge pictures in RGB"),
        (body(channels=1), "x.safetensors does not enlarge pictures in RGB"),
        (nn.Sequential(nn.Linear(3, 3)), "spandrel reads no network in x.safetensors"),
        (b"\0" * 64, "spandrel reads no network in x.safetensors"),
    ],
)
def test_a_file_that_does_not_enlarge_is_refused(content: Any, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        write_network(file, content)
    with pytest.raises(InputError, match=problem):
        load_upscale_model([tmp_path], LADDER, CPU, "x")


@needs_spandrel
def test_a_killed_job_continues_with_the_same_bytes_and_the_same_file_alone(
    folder: Path, tmp_path: Path
) -> None:
    film = write_film(tmp_path / "film.mp4", [*scene(40, 32, 48)])
    steps = GenerationRequest(video=str(film), finish="enlarge:2,weights:tiny", crf=1)
    request = with_sources(steps, [folder])
    assert request.finish.endswith(f",enlarge:2,weights:{find_upscale_model('tiny', [folder])[1]}")
    assert with_sources(request, [folder]) == request
    load = partial(load_upscale_model, [folder], LADDER, CPU)

    class Killed(BaseException):
        pass

    def kill(event: Event) -> None:
        if isinstance(event, SectionFinished):
            raise Killed

    whole = finish(request, tmp_path / "whole", load=load)
    frame, source = (np.asarray(next(all_frames(file, 30))) for file in (whole, film))
    computed, other = (
        enlarge._true_to(source, 255 * enlarged_by(body(seed=seed), source), 2) @ BT709 for seed in (1, 2)
    )
    assert np.abs(frame @ BT709 - computed).mean() < 3 < np.abs(computed - other).mean()
    files = JobFolder(tmp_path / "queued")
    files.path.mkdir()
    store_request(request, {}, files, final_folder=files)
    local = Local({"LONGTAKE_UPSCALE_MODELS": str(folder)})
    Runner(local, LADDER).run(files.path, lambda event: None, CancelToken())
    assert files.video.read_bytes() == whole.read_bytes()

    with pytest.raises(Killed):
        finish(request, tmp_path / "again", on_event=kill, load=load)
    content = (folder / "tiny.safetensors").read_bytes()
    write_network(folder / "tiny.safetensors", body(seed=2))
    message = r"tiny\.safetensors is no longer the network weights:tiny@[0-9a-f]{8}\."
    with pytest.raises(InputError, match=message):
        finish(request, tmp_path / "again", load=load)
    with pytest.raises(InputError, match=message):
        with_sources(request, [folder])
    (folder / "tiny.safetensors").write_bytes(content)
    assert finish(request, tmp_path / "again", load=load).read_bytes() == whole.read_bytes()


@needs_spandrel
def test_spandrel_is_read_beside_a_torchvision_of_another_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    monkeypatch.syspath_prepend(tmp_path)
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("spandrel", "torchvision"):
            monkeypatch.delitem(sys.modules, name)
    assert {"Compact", "ESRGAN", "DAT"} <= {arch.architecture.id for arch in _spandrel().MAIN_REGISTRY}
    assert not [name for name in sys.modules if name.partition(".")[0] == "torchvision"]

"""Tests of the video node, with a tiny model and a double of ComfyUI."""

import importlib
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from diffusers_helper.conditions.footage import all_frames
from diffusers_helper.errors import InputError
from diffusers_helper.finish.enlarge import _true_to
from diffusers_helper.models.registry import ModelInfo
from rocm_nodes.framepack.node import take_pictures
from tests.support.clips import scene
from tests.support.comfy_double import Comfy, Interrupted
from tests.support.films import write_film
from tests.support.loras import write_lora
from tests.support.node_runs import picture, run
from tests.support.tiny_model import tiny_transformer
from tests.support.upscale_models import BT709, body, enlarged_by, needs_spandrel, write_network


def test_a_video_is_joined_and_made_smoother(comfy: Comfy, tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.mp4", [*scene(12)])
    source = SimpleNamespace(get_stream_source=lambda: str(film))
    in_memory = SimpleNamespace(get_stream_source=lambda: BytesIO(film.read_bytes()))
    (frames, video, played), text = run(
        "ROCMFinishVideo", video=source, join=in_memory, steps="smooth:60,join:2"
    )
    assert frames.shape == (44, 64, 96, 3)
    assert Path(video).is_relative_to(comfy.root / "output" / "framepack")
    assert played.file == video
    assert video in text
    assert comfy.shown[-1] == (44, 44)
    assert "unload_all_models" in comfy.calls


@needs_spandrel
def test_a_network_of_comfyuis_folder_enlarges(comfy: Comfy, tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.mp4", [*scene(3, 32, 48)])
    write_network(comfy.root / "upscale_models" / "own.safetensors", body())
    source = SimpleNamespace(get_stream_source=lambda: str(film))
    (frames, *_), _ = run("ROCMFinishVideo", video=source, steps="enlarge:2,weights:own", crf=1)
    frame = np.asarray(next(all_frames(film)))
    computed = _true_to(frame, 255 * enlarged_by(body(), frame), 2) @ BT709
    assert np.abs(255 * frames[0].numpy() @ BT709 - computed).mean() < 3


def test_a_way_that_there_is_not_is_refused_before_anything_is_moved(
    tiny: ModelInfo, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_CONV_RUNG", "bogus")
    with pytest.raises(InputError, match="is 'bogus'; expected one of auto, kitchen, miopen"):
        run("ROCMFramePackVideo", image=picture(), prompt="x", model="tiny", seconds=1.0, seed=1, steps=2)
    assert "unload_all_models" not in comfy.calls
    assert not (comfy.root / "output" / "framepack").exists()


def test_a_picture_becomes_frames_and_a_file(
    tiny: ModelInfo, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: pytest.fail("a limit"))
    (frames, video, played), text = run(
        "ROCMFramePackVideo", image=picture(), prompt="the red ball moves right", model="tiny",
        seconds=1.0, seed=1, steps=2, vae_tile="auto",
    )  # fmt: skip
    assert frames.shape == (37, 64, 64, 3)
    assert 0 <= frames.min() < frames.max() <= 1
    assert (frames[0] - picture()[0]).abs().mean() < 0.5
    assert Path(video).is_file()
    assert played.file == video
    assert Path(video).is_relative_to(comfy.root / "output" / "framepack")
    assert "37 frames in" in text
    (first, second) = comfy.shown
    assert (first[:2], len(first), second) == ((1, 2), 3, (2, 2))  # with a preview
    assert comfy.calls == ["unload_all_models", "soft_empty_cache"]


def test_words_alone_become_frames(tiny: ModelInfo, comfy: Comfy) -> None:
    (frames, *_), _ = run(
        "ROCMFramePackVideo", prompt="a red ball", model="tiny", seconds=1.0, seed=1, steps=1, shape="16:9"
    )
    assert frames.shape == (33, 48, 80, 3)


def test_a_time_that_is_not_understood_is_shown_before_the_work(
    tiny: ModelInfo, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "rocm_nodes.framepack.node.show_text", lambda text: shown.append((text, len(comfy.shown)))
    )
    _, text = run("ROCMFramePackVideo", prompt="a ball [2s x]", model="tiny", seconds=1.0, seed=1, steps=1)
    assert (
        "'[2s x]' is no time that is understood and counts as words. Write it as [2.4s: ...].",
        0,
    ) in shown
    assert "'[2s x]' is no time" in text


@pytest.mark.slow
def test_a_lora_is_a_file_in_comfyuis_folder(tiny: ModelInfo, comfy: Comfy, tmp_path: Path) -> None:
    write_lora(comfy.root / "loras" / "style.safetensors", tiny_transformer(), size=1.0)
    write_lora(tmp_path / "other.safetensors", tiny_transformer())
    settings = {"prompt": "ball", "model": "tiny", "seconds": 1.0, "seed": 1, "steps": 1}
    plain = run("ROCMFramePackVideo", image=picture(), **settings)[0][0]
    (frames, *_), text = run("ROCMFramePackVideo", image=picture(), lora="style.safetensors:2", **settings)
    assert "LoRA style.safetensors, weight 2: " in text
    assert not torch.equal(frames, plain)
    with pytest.raises(FileNotFoundError):
        run("ROCMFramePackVideo", image=picture(), lora="other.safetensors", **settings)


def test_a_picture_of_one_channel_is_grey(
    tiny: ModelInfo, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Image.Image] = []
    monkeypatch.setattr(Image.Image, "save", lambda self, path: saved.append(self))
    monkeypatch.setattr("diffusers_helper.pipeline.generate", lambda *_, **__: pytest.fail("the end"))
    with pytest.raises(pytest.fail.Exception, match="the end"):
        run("ROCMFramePackVideo", image=picture()[..., :1], prompt="ball", model="tiny", seconds=1.0)
    assert (saved[0].mode, saved[0].size) == ("RGB", (64, 64))
    assert saved[0].getpixel((63, 63)) == (255, 255, 255)


def test_the_transparent_part_of_a_picture_is_white() -> None:
    image = torch.zeros(1, 4, 4, 4)
    image[..., 0], image[:, :2, :, 3], image[:, 2, :, 3] = 1.0, 1.0, 0.2
    saved = take_pictures({"image": image, "end_image": image[..., :3]})
    assert [saved["image"].getpixel((0, y)) for y in (0, 2, 3)] == [
        (255, 0, 0), (255, 204, 204), (255, 255, 255)
    ]  # fmt: skip
    assert saved["end_image"].getpixel((0, 3)) == (255, 0, 0)


def test_an_interrupt_ends_it(tiny: ModelInfo, comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = importlib.import_module("comfy.utils")

    def stop(self: object, value: int, total: int | None = None, preview: object = None) -> None:
        comfy.shown.append((value, total or 0))
        comfy.is_interrupted = True

    monkeypatch.setattr(utils.ProgressBar, "update_absolute", stop)
    with pytest.raises(Interrupted):
        run("ROCMFramePackVideo", image=picture(), prompt="ball", model="tiny", seconds=1.0, seed=1, steps=4)
    assert comfy.shown == [(1, 4)]


@pytest.mark.parametrize(("name", "value"), [("vae_tile", "wide"), ("vae_tile", "65"), ("steps", 0)])
def test_values_that_no_setting_takes_are_refused(
    tiny: ModelInfo, comfy: Comfy, name: str, value: object
) -> None:
    settings = {"model": "tiny", "seconds": 1.0, "seed": 1, "steps": 2} | {name: value}
    with pytest.raises(InputError, match=f"{name} is"):
        run("ROCMFramePackVideo", image=picture(), prompt="ball", **settings)
    assert not (comfy.root / "output").exists()


def test_a_model_is_not_downloaded_without_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comfy: Comfy
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(InputError, match=r"Model framepack-f1 is not on this machine: [\d.]+ GB to download"):
        run("ROCMFramePackVideo", image=picture(), prompt="ball", model="framepack-f1", seconds=1.0)
    assert comfy.calls == []

"""Tests of FramePack in parts, with a tiny model and a double of ComfyUI."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.continuing import CLIPS
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.vae.engine import VaeEngine
from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.comfy_double import Comfy
from tests.support.node_runs import picture, run


def test_the_parts_make_the_video_of_the_one_node(
    tiny: ModelInfo, comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions = {"image": picture(), "prompt": "the red ball moves right", "mode": "forward"}
    sampling = {"seconds": 2.0, "seed": 3, "steps": 1}
    decode, decoded = VaeEngine.decode, list[Tensor]()
    monkeypatch.setattr(
        VaeEngine, "decode", lambda self, x, **named: decoded.append(x) or decode(self, x, **named)
    )
    (expected, *_), _ = run("ROCMFramePackVideo", model="tiny", **conditions, **sampling)
    ((model,), _) = run("ROCMFramePackLoader", model="tiny")
    (encoded,), text = run("ROCMFramePackConditions", model=model, **conditions)
    assert "1 picture and the prompt are encoded for 64x64." in text
    assert set(encoded.encodings) == {"states_0", "pooled_0", "vision"}
    monkeypatch.setattr("diffusers_helper.job.work.TextStage.run", lambda *_: pytest.fail("again"))
    comfy.shown.clear()
    (sampled, latent), text = run("ROCMFramePackSampler", conditions=encoded, **sampling)
    assert "latent frames in 2 sections." in text
    assert comfy.shown[-1] == (2, 2)
    monkeypatch.setattr("diffusers_helper.pipeline.denoise", lambda *_: pytest.fail("again"))
    (frames, video, played), text = run("ROCMFramePackDecode", sampled=sampled)
    assert torch.equal(frames, expected)
    assert f"{len(frames)} frames in {video}" in text
    assert played.file == video
    # The latents are in the scale that ComfyUI's VAE takes.
    assert latent["samples"].shape == (1, 16, (len(frames) + 3) // 4, 8, 8)
    assert torch.equal(latent["samples"][:, :, -decoded[-1].shape[2] :], decoded[-1])
    (smaller, path, _), _ = run("ROCMFramePackDecode", sampled=sampled, crf=40)
    assert smaller.shape == frames.shape
    assert Path(path).stat().st_size < Path(video).stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings", "frames", "latents"),
    [
        ("tiny_helios", {"seconds": 2.75}, 66, (1, 16, 18, 8, 8)),
        ("tiny_helios_distilled", {"seconds": 2.75}, 66, (1, 16, 18, 8, 8)),
        ("tiny_wan_fast", {"seconds": 1.0, "clip_frames": 13}, 25, (1, 48, 8, 4, 4)),
    ],
)
def test_the_nodes_make_videos_with_other_families(
    kind: str, settings: dict[str, Any], frames: int, latents: tuple[int, ...], comfy: Comfy,
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    info = replace(find_model(str(request.getfixturevalue(kind)), allow_folder=True), side=64)
    for module in ("framepack.node", "framepack.parts"):
        monkeypatch.setattr(f"rocm_nodes.{module}.find_model", lambda name: info)
    conditions = {"image": picture(), "prompt": "the red ball moves right", "mode": "forward"}
    sampling = {**settings, "seed": 3, "steps": 3}
    (expected, *_), _ = run("ROCMFramePackVideo", model="tiny", **conditions, **sampling)
    assert expected.shape == (frames, 64, 64, 3)
    ((model,), _) = run("ROCMFramePackLoader", model="tiny")
    (encoded,), _ = run("ROCMFramePackConditions", model=model, **conditions)
    (sampled, latent), text = run("ROCMFramePackSampler", conditions=encoded, **sampling)
    assert "latent frames in 2 sections." in text
    assert latent["samples"].shape == latents
    (decoded, *_), _ = run("ROCMFramePackDecode", sampled=sampled)
    assert torch.equal(decoded, expected)


def test_another_seed_encodes_only_the_start_again(tiny: ModelInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    ((model,), _) = run("ROCMFramePackLoader", model="tiny")
    (encoded,), _ = run("ROCMFramePackConditions", model=model, image=picture(), prompt="ball")
    settings = {"seconds": 1.0, "steps": 1}
    first, second = (
        run("ROCMFramePackSampler", conditions=encoded, seed=seed, **settings)[0][1]["samples"]
        for seed in (1, 2)
    )
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_files_in_comfyuis_folders_replace_parts(tiny: ModelInfo, comfy: Comfy) -> None:
    source = next(
        Path(tiny.components["vae"].location, tiny.components["vae"].subfolder).glob("*.safetensors")
    )
    for folder in ("vae", "diffusion_models"):
        (comfy.root / folder).mkdir()
    file = comfy.root / "vae" / "other.safetensors"
    file.write_bytes(source.read_bytes())
    (comfy.root / "diffusion_models" / "fp.gguf").write_bytes(b"")
    types: Any = NODE_CLASS_MAPPINGS["ROCMFramePackLoader"].INPUT_TYPES()["optional"]
    assert types["vae"][0] == ["the model's own", "other.safetensors"]
    assert types["transformer"][0] == ["the model's own", "fp.gguf"]
    ((model,), text) = run("ROCMFramePackLoader", model="tiny", vae="other.safetensors")
    assert model.info.components["vae"].location == str(file)
    assert model.info.components["transformer"] == tiny.components["transformer"]
    assert "vae: " in text
    with pytest.raises(InputError, match=r"The transformer cannot be used: fp\.gguf"):
        run("ROCMFramePackLoader", model="tiny", transformer="fp.gguf")


@pytest.mark.slow
def test_both_ways_continue_a_video_of_comfyuis_input_folder(tiny: ModelInfo, comfy: Comfy) -> None:
    (comfy.root / "input").mkdir(exist_ok=True)
    replace(CLIPS["25"], seconds=1).write(comfy.root / "input" / "clip.mp4")
    conditions = {"prompt": "the red ball moves right", "video": "clip.mp4", "mode": "forward"}
    sampling = {"seconds": 1.0, "seed": 3, "steps": 1}
    (expected, *_), _ = run("ROCMFramePackVideo", model="tiny", **conditions, **sampling)
    assert len(expected) == 30 + 36
    ((model,), _) = run("ROCMFramePackLoader", model="tiny")
    (encoded,), _ = run("ROCMFramePackConditions", model=model, **conditions)
    (sampled, _), _ = run("ROCMFramePackSampler", conditions=encoded, **sampling)
    (frames, *_), _ = run("ROCMFramePackDecode", sampled=sampled)
    assert torch.equal(frames, expected)

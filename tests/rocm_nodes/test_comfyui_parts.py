"""Tests of encoders, GGUF, LoRAs and FramePack in parts in the real ComfyUI; see `test_comfyui.py`.

If COMFYUI_GGUF_ROOT names a checkout of ComfyUI-GGUF, its loader is compared with ours, too.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from diffusers_helper.models.registry import find_model
from tests.support.comfyui_client import Graph, Server, node
from tests.support.comfyui_graphs import framepack, process_facts
from tests.support.comfyui_process import ABSENT, COMFYUI, install, running
from tests.support.published import part_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not COMFYUI, reason=ABSENT)]
OTHER = os.environ.get("COMFYUI_GGUF_ROOT", "")
WAN, KIND = "wan2.1_t2v_1.3B_bf16.safetensors", gguf.GGMLQuantizationType.Q8_0


def install_both(base: Path) -> None:
    install(base)
    if OTHER:
        (base / "custom_nodes" / "ComfyUI-GGUF").symlink_to(OTHER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_helios_distilled: Path) -> Iterator[Server]:
    """Start ComfyUI, and write Wan in blocks of GGUF, the same weights without blocks, and a LoRA.

    A tiny Helios model lies where the published one is downloaded to.
    """
    base, hub = tmp_path_factory.mktemp("comfyui"), tmp_path_factory.mktemp("hub")
    info = find_model("helios-distilled")
    for part in info.components:
        shutil.copytree(tiny_helios_distilled / part, part_folder(hub, info, part))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(hub))
        yield from serve(base)


def serve(base: Path) -> Iterator[Server]:
    with running(base, place=install_both) as server:
        folder, loras = base / "models/diffusion_models", base / "models/loras"
        save_file(write_blocks(folder / "wan.gguf", load_file(folder / WAN)), folder / "plain.safetensors")
        loras.mkdir(exist_ok=True)
        layer = "diffusion_model.blocks.0.self_attn.q"
        lora = {f"{layer}.lora_up.weight": torch.ones(128, 2)}
        lora |= {
            f"{layer}.lora_down.weight": torch.ones(2, 128),
            "elsewhere.lora_up.weight": torch.ones(2, 2),
        }
        save_file(lora, loras / "style.safetensors")
        yield server


def write_blocks(file: Path, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Write a GGUF file, with blocks for the weights of linear layers, and return what these stand for."""
    writer, plain = gguf.GGUFWriter(file, "wan"), dict(weights)
    for name, value in weights.items():
        if value.dim() == 2 and value.shape[1] % 32 == 0:
            blocks = gguf.quants.quantize(value.numpy(), KIND)
            writer.add_tensor(name, blocks, raw_dtype=KIND)
            plain[name] = torch.from_numpy(gguf.quants.dequantize(blocks, KIND))
        else:
            writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain


def sampling(loader: Any, name: str, strength: float) -> Graph:
    return {
        "1": loader, "2": node("ToyConditioning", text="a"),
        "3": node("ToyNoise", frames=2, height=8, width=8),
        "4": node("ROCMLoRALoader", model=["1", 0], lora_name="style.safetensors", strength_model=strength,
                  strength_clip=0.0),
        "5": node("KSampler", model=["4", 0], positive=["2", 0], negative=["2", 0], latent_image=["3", 0],
                  seed=1, steps=2, cfg=1.0, sampler_name="euler", scheduler="simple", denoise=1.0),
        "6": node("ToyKeep", name=name, latent=["5", 0]),
    }  # fmt: skip


def test_the_first_use_of_further_packages_leaves_the_process_as_it_was(server: Server) -> None:
    before = process_facts(server)["facts"]
    server.run(sampling(node("ROCMOptimizedUNetLoader", unet_name="wan.gguf"), "first.safetensors", 0.0))
    assert process_facts(server)["facts"] == before
    server.run(framepack(steps=1, seconds=1.0))
    assert process_facts(server)["facts"] == before


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_weights_in_blocks_sample_as_those_without(server: Server, strength: float) -> None:
    ours = node("ROCMOptimizedUNetLoader", unet_name="wan.gguf")
    outputs = server.run(sampling(ours, "gguf.safetensors", strength))
    assert "95% Q8_0" in outputs["1"]["text"][0]
    assert "The weights stay quantised" in outputs["1"]["text"][0]
    assert "1 of 3 keys of the file fit nothing here: elsewhere.lora_up.weight" in outputs["4"]["text"][0]
    plain = node("UNETLoader", unet_name="plain.safetensors", weight_dtype="default")
    server.run(sampling(plain, "plain.safetensors", strength))
    found = server.kept("gguf.safetensors")
    assert found.std() > 0.1
    assert torch.equal(found, server.kept("plain.safetensors"))


@pytest.mark.skipif(not OTHER, reason="COMFYUI_GGUF_ROOT names no checkout of ComfyUI-GGUF")
@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_they_sample_as_with_the_loader_of_comfyui_gguf(server: Server, strength: float) -> None:
    for name, kind in (("a", "ROCMOptimizedUNetLoader"), ("b", "UnetLoaderGGUF")):
        server.run(sampling(node(kind, unet_name="wan.gguf"), f"{name}.safetensors", strength))
    ours, theirs = server.kept("a.safetensors"), server.kept("b.safetensors")
    # That one rounds the weights to fp16 when it takes blocks apart.
    assert (ours - theirs).abs().mean() < 0.003 * ours.std()


@pytest.mark.parametrize("is_video", [False, True])
def test_an_encode_has_the_bits_of_the_stock_node(server: Server, is_video: bool) -> None:
    ours = {"tile_size": 768, "overlap": 96, "use_rocm_optimizations": True, "precision_mode": "auto"}
    kept: list[torch.Tensor] = []
    for kind, inputs in (("ROCMOptimizedVAEEncode", ours), ("VAEEncode", {})):
        graph = {
            "1": node("LoadImage", image="start.png"),
            "2": node("VAELoader", vae_name="wan_2.1_vae.safetensors"),
            "3": node("RepeatImageBatch", image=["1", 0], amount=6 if is_video else 1),
            "4": node(kind, pixels=["3", 0], vae=["2", 0], **inputs),
            "5": node("ToyKeep", name="encoded.safetensors", latent=["4", 0]),
        }  # fmt: skip
        if not is_video:
            graph["2"] = node("CheckpointLoaderSimple", ckpt_name="sd3.5_medium.safetensors")
            graph["4"]["inputs"]["vae"] = ["2", 2]
        outputs = server.run(graph)
        if kind.startswith("ROCM"):
            assert "ComfyUI's choice" in outputs["4"]["text"][0]
        kept.append(server.kept("encoded.safetensors"))
    assert kept[0].shape[1:] == ((16, 2, 8, 12) if is_video else (16, 8, 12))
    assert kept[0].std() > 0.001
    assert torch.equal(*kept)


def test_a_custom_sample_has_the_bits_of_the_stock_node(server: Server) -> None:
    for kind in ("ROCMSamplerCustomAdvanced", "SamplerCustomAdvanced"):
        server.run({
            "1": node("UNETLoader", unet_name=WAN, weight_dtype="default"),
            "2": node("ToyConditioning", text="a"), "3": node("ToyNoise", frames=2, height=8, width=8),
            "4": node("RandomNoise", noise_seed=4), "5": node("KSamplerSelect", sampler_name="euler"),
            "6": node("BasicScheduler", model=["1", 0], scheduler="simple", steps=3, denoise=1.0),
            "7": node("BasicGuider", model=["1", 0], conditioning=["2", 0]),
            "8": node(kind, noise=["4", 0], guider=["7", 0], sampler=["5", 0], sigmas=["6", 0],
                      latent_image=["3", 0]),
            "9": node("ToyKeep", name=f"{kind}.safetensors", latent=["8", 0]),
            "10": node("ToyKeep", name=f"{kind}-x0.safetensors", latent=["8", 1]),
        })  # fmt: skip
    for end in ("", "-x0"):
        ours, stock = (
            server.kept(f"{kind}{end}.safetensors")
            for kind in ("ROCMSamplerCustomAdvanced", "SamplerCustomAdvanced")
        )
        assert ours.std() > 0.1
        assert torch.equal(ours, stock)


@pytest.mark.parametrize(
    ("model", "given", "frames"),
    [("demo", {}, 37), ("helios-distilled", {"mode": "forward", "resolution": 64}, 66)],
)
def test_a_model_in_parts_is_the_one_node(
    server: Server, model: str, given: dict[str, Any], frames: int
) -> None:
    prompt, loader = "the red ball moves right", node("ROCMFramePackLoader", model=model)
    settings: dict[str, Any] = {"seconds": 1.0 if model == "demo" else 2.75, "seed": 3, "steps": 1}
    outputs = server.run({
        "1": node("LoadImage", image="start.png"), "2": loader,
        "3": node("ROCMFramePackConditions", model=["2", 0], image=["1", 0], prompt=prompt, **given),
        "4": node("ROCMFramePackSampler", conditions=["3", 0], **settings),
        "5": node("ROCMFramePackDecode", sampled=["4", 0]),
        "6": node("ToyKeep", name="parts.safetensors", image=["5", 0]),
        "7": node("SaveVideo", video=["5", 2], filename_prefix="parts", format="auto", codec="auto"),
        "8": node("ROCMFramePackVideo", image=["1", 0], prompt=prompt, model=model, **given, **settings),
        "9": node("ToyKeep", name="one.safetensors", image=["8", 0]),
    })  # fmt: skip
    made = server.kept("parts.safetensors")
    assert len(made) == frames
    assert torch.equal(made, server.kept("one.safetensors"))
    assert outputs["7"]["images"][0]["filename"].endswith(".mp4")
    assert Path(server.base, "output", outputs["7"]["images"][0]["filename"]).stat().st_size > 1000

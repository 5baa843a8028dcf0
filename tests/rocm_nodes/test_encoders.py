"""Tests of the encoders against a double of ComfyUI."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.comfy_double import VAE, Comfy, PictureVae, WanVAE
from tests.support.node_runs import SHORT, noise, run


def pictures(count: int, height: int, width: int, channels: int = 3) -> Tensor:
    return torch.rand(count, height, width, channels, generator=torch.Generator().manual_seed(1))


def encode(vae: VAE, pixels: Tensor, **changes: Any) -> tuple[Tensor, str]:
    inputs = {"pixels": pixels, "vae": vae, "tile_size": 768, "overlap": 96} | changes
    (latent,), text = run("ROCMOptimizedVAEEncode", **inputs)
    return latent["samples"], text


@pytest.mark.parametrize("size", [(32, 48), (37, 50)])
def test_a_picture_has_the_bits_of_the_stock_node(size: tuple[int, int]) -> None:
    vae, pixels = VAE(PictureVae()), pictures(1, *size)
    found, text = encode(vae, pixels)
    assert torch.equal(found, vae.encode(pixels))
    assert found.shape == (1, 16, 4, 6)
    assert "Encoded in" in text
    assert "exact" in text


def test_the_pictures_of_a_batch_and_their_alpha_channel() -> None:
    vae, pixels = VAE(PictureVae()), pictures(3, 32, 32, 4)
    found, _ = encode(vae, pixels)
    torch.testing.assert_close(found, vae.encode(pixels[..., :3]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("frames", [1, 8, 9, 11])
def test_a_video_has_the_bits_of_the_stock_node(frames: int, comfy: Comfy) -> None:
    vae, pixels = VAE(WanVAE()), pictures(frames, 32, 32)
    found, _ = encode(vae, pixels)
    assert found.shape == (1, 16, (frames - 1) // 4 + 1, 4, 4)
    assert torch.equal(found, vae.encode(pixels))
    (asked,) = [float(call.split()[2]) for call in comfy.calls if "load" in call]
    encode(vae, pixels[: (frames - 1) // 4 * 4 + 1])
    assert float(comfy.calls[-1].split()[2]) == asked  # the frames that are left out need no memory


def test_the_type_and_the_frames_of_latents_are_those_of_the_vae() -> None:
    vae: Any = VAE(PictureVae())
    vae.not_video = True  # which says nothing of a VAE of pictures
    vae.vae_output_dtype = lambda: torch.float64
    latents, _ = encode(vae, pictures(2, 32, 32))
    assert (latents.dtype, latents.shape) == (torch.float64, (2, 16, 4, 4))
    wan: Any = VAE(WanVAE())
    wan.not_video = True
    assert encode(wan, pictures(2, 32, 32))[0].shape == (2, 16, 1, 4, 4)


def test_a_shortage_leads_to_tiles_which_are_told() -> None:
    vae, widths = VAE(PictureVae()), list[int]()

    def short(_: Any, args: tuple[Tensor, ...]) -> None:
        widths.append(args[0].shape[-1])
        if widths[-1] > 256:
            raise torch.OutOfMemoryError(SHORT)

    handle = vae.first_stage_model.inner.encoder.register_forward_pre_hook(short)
    pixels = pictures(1, 384, 384)
    found, text = encode(vae, pixels)
    handle.remove()
    assert widths[0] == 384
    assert max(widths[1:]) <= 384
    assert widths[-1] <= 256
    assert "in tiles of 256 pixels" in text
    assert "Memory ran out in" in text
    assert (found - vae.encode(pixels)).abs().mean() < 0.1


def test_tiles_are_labelled() -> None:
    vae, pixels = VAE(PictureVae()), pictures(1, 384, 384)
    inputs = {"pixels": pixels, "vae": vae, "tile_size": 256, "overlap": 64}
    (latent,), text = run("ROCMOptimizedVAEEncodeTiled", **inputs)
    assert "in tiles of 256 pixels" in text
    assert (latent["samples"] - vae.encode(pixels)).abs().mean() < 0.1


@pytest.mark.parametrize("form", [{"output_channels": 4}, {"format_encoded": "packed"}])
def test_a_vae_with_a_form_of_its_own_is_left_to_comfyui(comfy: Comfy, form: dict[str, Any]) -> None:
    vae: Any = VAE(PictureVae())
    vars(vae).update(form)
    found, text = encode(vae, pictures(1, 32, 32))
    assert torch.equal(found, vae.encode(pictures(1, 32, 32)))
    assert "ComfyUI's own encode was used, since the VAE is PictureVae" in text
    inputs = {"pixels": pictures(1, 32, 32), "vae": vae, "tile_size": 256, "overlap": 64}
    run("ROCMOptimizedVAEEncodeTiled", **inputs)
    assert comfy.calls == ["encode", "encode in tiles of 256, 64"]


def test_the_precision_is_that_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocm_nodes.vae_nodes.is_rocm", lambda: True)
    vae = VAE(PictureVae())
    vae.vae_dtype = torch.float16
    vae.first_stage_model.to(torch.float16)
    _, text = encode(vae, pictures(1, 32, 32))
    assert "in float32." in text
    assert "ComfyUI would take float16" in text
    assert "in bfloat16." in encode(vae, pictures(1, 32, 32), precision_mode="bf16")[1]
    assert vae.first_stage_model.encode(noise(1, 3, 32, 32).half()).dtype == torch.float16

"""Tests of the decoders against a double of ComfyUI: bits, shortages, failures, interrupts."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.units import count_text
from rocm_nodes import decoding
from rocm_nodes.page import Run
from tests.support.comfy_double import VAE, Comfy, Interrupted, PictureVae, WanVAE
from tests.support.drivers import as_torchs
from tests.support.node_runs import SHORT, noise, run


def decode(vae: VAE, latents: Tensor, **changes: Any) -> tuple[Tensor, str]:
    inputs = {"samples": {"samples": latents}, "vae": vae, "tile_size": 768, "overlap": 96} | changes
    (pictures,), text = run("ROCMOptimizedVAEDecode", **inputs)
    return pictures, text


def test_a_picture_has_the_bits_of_the_stock_node(comfy: Comfy) -> None:
    vae, latents = VAE(PictureVae()), noise(1, 16, 4, 6)
    found, text = decode(vae, latents)
    assert torch.equal(found, vae.decode(latents))
    assert found.shape == (1, 32, 48, 3)
    assert "in float32" in text
    (loaded,) = comfy.calls
    vae.disable_offload = True
    decode(vae, latents)
    assert loaded.endswith(" False")
    assert comfy.calls[1:] == [loaded.replace("False", "True")]
    assert float(loaded.split()[2]) > 900 * 4 * 6


@pytest.mark.parametrize("network", [PictureVae, WanVAE])
@pytest.mark.parametrize("is_together", [True, False])
def test_a_batch_is_decoded_together_or_one_after_the_other(network: Any, is_together: bool) -> None:
    vae, shapes = VAE(network()), list[int]()
    latents = noise(3, 16, 4, 4) if network is PictureVae else noise(3, 16, 2, 4, 4)
    expected = vae.decode(latents).reshape(-1, 32, 32, 3)
    handle = vae.first_stage_model.decoder.register_forward_pre_hook(
        lambda _, call: shapes.append(len(call[0]))
    )
    found, _ = decode(vae, latents, batch_optimization=is_together)
    handle.remove()
    assert set(shapes) == ({3} if is_together else {1})
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", ["auto", "1", "2", "4", "8"])
def test_a_video_has_the_bits_of_the_stock_node_with_any_chunk(chunk: str) -> None:
    vae, latents = VAE(WanVAE()), noise(1, 16, 3, 4, 4)
    found, text = decode(vae, latents, chunk_size=chunk)
    assert found.shape == (9, 32, 32, 3)
    assert torch.equal(found, vae.decode(latents)[0])
    assert "exact" in text


def test_a_shortage_leads_to_smaller_pieces_which_are_told() -> None:
    vae = VAE(PictureVae())
    latents, failed = noise(1, 16, 48, 48), list[int]()

    def short(_: Any, args: tuple[Tensor, ...]) -> None:
        if args[0].shape[-1] > 29:
            failed.append(args[0].shape[-1])
            raise torch.OutOfMemoryError(SHORT)

    handle = vae.first_stage_model.decoder.register_forward_pre_hook(short)
    found, text = decode(vae, latents, tile_size=320)
    handle.remove()
    assert failed == [48, 30]  # in one piece, and in tiles of up to 320 pixels
    assert found.shape == (1, 384, 384, 3)
    assert "in tiles of 192 pixels: approximate." in text
    assert "Memory ran out in 2 attempts with larger pieces before" in text
    assert (found - vae.decode(latents)).abs().mean() < 0.1


@pytest.mark.parametrize(
    ("failures", "side", "proposal"), [(0, 320, ""), (1, 320, "320"), (2, 640, "512"), (3, None, "512")]
)
def test_a_run_is_told_with_what_would_begin_smaller(failures: int, side: int | None, proposal: str) -> None:
    tiles, ways = SimpleNamespace(side=side), SimpleNamespace(statistics=lambda: "No way failed.")
    plan = SimpleNamespace(tiles=tiles, reason="In tiles.")
    owner: Any = SimpleNamespace(plan=plan, dtype=torch.float16, failures=failures, convolutions=ways)
    first, reason, peak, *advice, statistics = decoding._lines("Encoded", owner, Run(2.5, 3 * 1024**3))
    assert (first, reason, statistics) == ("Encoded in 2.5 s, in float16.", "In tiles.", "No way failed.")
    assert peak == "The peak on the device was 3 GB."
    attempts = f"Memory ran out in {count_text(failures, 'attempt')} with larger pieces before. "
    words = f"{attempts}The tiled node with tile_size {proposal} would begin with smaller ones."
    assert advice == ([words] if failures else [])


def test_a_shortage_in_every_piece_reaches_the_page_with_the_guide() -> None:
    vae = VAE(WanVAE())

    def short(*_: Any) -> None:
        raise RuntimeError(SHORT)

    vae.first_stage_model.decoder.register_forward_pre_hook(short)
    with pytest.raises(torch.OutOfMemoryError, match="In a decode, set tile_size to 512"):
        decode(vae, noise(1, 16, 1, 16, 16))


def test_a_failing_convolution_is_computed_in_another_way_and_nothing_stays_changed() -> None:
    vae, latents = VAE(WanVAE()), noise(1, 16, 2, 4, 4)
    expected, before = (
        vae.decode(latents),
        {name: dict(vars(part)) for name, part in vae.first_stage_model.named_modules()},
    )
    plain = torch.conv3d

    def broken(x: Tensor, *rest: Any, **named: Any) -> Tensor:
        if x.shape[1] == 16:
            raise RuntimeError("miopenStatusUnknownError")
        return plain(x, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "conv3d", as_torchs(broken))
        found, text = decode(vae, latents)
    assert "taps attempts" in text
    torch.testing.assert_close(found, expected[0], rtol=0, atol=1e-5)
    after = {name: dict(vars(part)) for name, part in vae.first_stage_model.named_modules()}
    assert [vars_ == after[name] for name, vars_ in before.items()].count(False) == 0


def test_a_way_that_there_is_not_is_refused_and_one_that_is_forced_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vae, latents = VAE(WanVAE()), noise(1, 16, 2, 4, 4)
    monkeypatch.setenv("LONGTAKE_CONV_RUNG", "bogus")
    with pytest.raises(
        InputError, match="LONGTAKE_CONV_RUNG is 'bogus'; expected one of auto, kitchen, miopen"
    ):
        decode(vae, latents)
    monkeypatch.delenv("LONGTAKE_CONV_RUNG")
    plain, shapes = torch.conv3d, set[tuple[int, ...]]()

    def noted(x: Tensor, *rest: Any, **named: Any) -> Tensor:
        shapes.add(tuple(x.shape[3:]))
        return plain(x, *rest, **named)

    monkeypatch.setattr(torch.nn.functional, "conv3d", as_torchs(noted))
    decode(vae, latents)
    assert (4, 4) in shapes
    shapes.clear()
    monkeypatch.setenv("LONGTAKE_CONV_RUNG", "tiles")
    decode(vae, latents)
    assert (4, 4) not in shapes


def test_an_interrupt_ends_it_with_comfyuis_own_exception(comfy: Comfy) -> None:
    vae = VAE(WanVAE())
    handle = vae.first_stage_model.decoder.inner.conv_in.register_forward_hook(
        lambda *_: setattr(comfy, "is_interrupted", True)
    )
    with pytest.raises(Interrupted):
        decode(vae, noise(1, 16, 3, 4, 4))
    handle.remove()
    assert not comfy.is_interrupted  # the next run is not ended by it


def test_a_vae_of_sound_is_left_to_comfyui(comfy: Comfy) -> None:
    vae = VAE(PictureVae())
    vae.latent_dim = 1
    found, text = decode(vae, noise(1, 16, 4, 4))
    assert torch.equal(found, vae.decode(noise(1, 16, 4, 4)))
    assert "ComfyUI's own decode was used" in text
    assert torch.equal(tiles(vae, noise(1, 16, 4, 4))[0], found)
    assert comfy.calls == []  # sound has no tiles


def tiles(vae: VAE, latents: Tensor, **changes: Any) -> tuple[Tensor, str]:
    inputs = {"tile_size": 256, "overlap": 64, "temporal_size": 64, "temporal_overlap": 8} | changes
    (found,), text = run("ROCMOptimizedVAEDecodeTiled", samples={"samples": latents}, vae=vae, **inputs)
    return found, text


def test_a_vae_that_the_engine_cannot_drive_is_left_to_comfyuis_tiles(comfy: Comfy) -> None:
    vae = VAE(PictureVae())
    vae.first_stage_model.inner.decoder.__class__ = type(
        "VideoDecoder", (type(vae.first_stage_model.decoder),), {}
    )
    found, text = tiles(vae, noise(1, 16, 4, 4), temporal_overlap=12)
    assert torch.equal(found, vae.decode(noise(1, 16, 4, 4)))
    assert "ComfyUI's own decode was used" in text
    assert comfy.calls == ["tiles of 256, 64, 64, 12"]


def test_each_latent_frame_of_a_picture_vae_is_a_picture_and_it_says_so() -> None:
    vae, latents = VAE(PictureVae()), noise(1, 16, 2, 4, 4)
    found, text = decode(vae, latents)
    assert torch.equal(found[:1], vae.decode(latents[:, :, 0]))
    assert found.shape == (2, 32, 32, 3)
    assert "Each of the 2 latent frames is decoded as a picture" in text
    nested: Any = SimpleNamespace(is_nested=True, unbind=lambda: (latents, noise(1, 8, 9)))
    assert torch.equal(decode(vae, nested)[0], found)  # the pictures of a video with sound
    assert "latent frames" not in decode(vae, latents[:, :, :1])[1]


def test_a_failure_of_miopen_outside_a_convolution_gets_the_guide() -> None:
    vae = VAE(PictureVae())

    def fail(*_: Any) -> None:
        raise RuntimeError("miopenStatusInternalError")

    vae.first_stage_model.decoder.conv_norm_out.register_forward_pre_hook(fail)
    with pytest.raises(LongtakeError, match="Remove what MIOpen has learned"):
        decode(vae, noise(1, 16, 4, 4))


def test_tiles_are_labelled_and_have_no_seam() -> None:
    vae = VAE(PictureVae())
    latents = noise(1, 16, 1, 1).expand(1, 16, 48, 48)
    found, text = tiles(vae, latents)
    assert "in tiles of 256 pixels" in text
    whole = vae.decode(latents)
    # A seam would be a step between two columns that the whole picture does not have there.
    steps, most = (
        (found[:, :, 1:] - found[:, :, :-1]).abs().mean((0, 1, 3)),
        (whole[:, :, 1:] - whole[:, :, :-1]).abs().mean((0, 1, 3)),
    )
    assert (steps[64:-64] - most[64:-64]).max() < 0.02


def test_the_process_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *_: pytest.fail("a limit was set")
    )
    before = dict(os.environ), torch.nn.functional.conv3d, torch.nn.Conv3d.forward, torch.get_default_dtype()
    decode(VAE(WanVAE()), noise(1, 16, 2, 4, 4), precision_mode="bf16")
    after = dict(os.environ), torch.nn.functional.conv3d, torch.nn.Conv3d.forward, torch.get_default_dtype()
    assert before == after

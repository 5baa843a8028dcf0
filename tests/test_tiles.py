"""Decoding in tiles that are kept gives the bits that the VAE's own decode gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import Tensor

from diffusers_helper.history import History
from diffusers_helper.packing import Mode, plan_sections
from diffusers_helper.tiles import TileDecoder
from tests.support.making import seconds_for


@pytest.fixture(scope="module")
def vae(tiny_model: Path) -> AutoencoderKLHunyuanVideo:
    return AutoencoderKLHunyuanVideo.from_pretrained(tiny_model / "vae").eval().requires_grad_(False)


def noise(count: int) -> Tensor:
    return torch.randn(1, 16, count, 2, 2, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 6, 7, 9, 10, 13, 18, 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_latents(count: int, dtype: torch.dtype, vae: AutoencoderKLHunyuanVideo) -> None:
    latents, network = noise(count).to(dtype), vae.to(dtype)
    expected = network.decode(latents, return_dict=False)[0]
    found = TileDecoder().decode(network, latents, 0)
    assert found.shape[2] == 4 * count - 3
    assert torch.equal(found, expected)
    assert network.use_framewise_decoding
    vae.to(torch.float32)


@pytest.mark.parametrize(("mode", "calls"), [("inverted", [3, 3, 4, 6]), ("forward", [3, 6, 4, 4])])
def test_sections_share_tiles(
    mode: Mode, calls: list[int], vae: AutoencoderKLHunyuanVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, decoder = History(mode, noise(1)), TileDecoder()
    for section, expected_calls in zip(plan_sections(seconds_for(4), mode=mode), calls, strict=True):
        history.add(noise(9) + section.number, section)
        latents, begin = history.to_decode(section)
        expected = vae.decode(latents, return_dict=False)[0]
        counted: list[int] = []
        decode = vae.decode
        with monkeypatch.context() as patch:
            patch.setattr(vae, "decode", lambda *a, n=counted, d=decode, **k: n.append(1) or d(*a, **k))
            found = decoder.decode(vae, latents, begin)
        assert torch.equal(found, expected)
        assert len(counted) == expected_calls

"""Decoding in windows of time that are kept gives the bits that the VAE's own decode gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import Tensor

from diffusers_helper.framepack.history import History
from diffusers_helper.packing import Mode, plan_sections
from diffusers_helper.vae.families import family_of
from diffusers_helper.vae.passes import Pieces
from diffusers_helper.vae.plan import Tiles
from diffusers_helper.vae.sections import SectionDecoder
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
    found = SectionDecoder().decode(family_of(network), latents, 0, Tiles(), Pieces())
    assert found.shape[2] == 4 * count - 3
    assert torch.equal(found, expected)
    vae.to(torch.float32)


@pytest.mark.parametrize(("mode", "calls"), [("inverted", [3, 3, 4, 6]), ("forward", [3, 6, 4, 4])])
def test_sections_share_windows(mode: Mode, calls: list[int], vae: AutoencoderKLHunyuanVideo) -> None:
    history, decoder = History(mode, noise(1)), SectionDecoder()
    for section, expected_calls in zip(plan_sections(seconds_for(4), mode=mode), calls, strict=True):
        history.add(noise(9) + section.number, section)
        latents, begin = history.to_decode(section)
        expected = vae.decode(latents, return_dict=False)[0]
        counted: list[tuple[int, int]] = []
        pieces = Pieces(lambda done, total, told=counted: told.append((done, total)))
        found = decoder.decode(family_of(vae), latents, begin, Tiles(), pieces)
        assert torch.equal(found, expected)
        assert counted == [(done, expected_calls) for done in range(1, expected_calls + 1)]

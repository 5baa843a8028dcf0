"""Tests that the smaller convolution of an enlargement computes what diffusers' own does."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoUpsampleCausal3D

from diffusers_helper.loading.quick_vae import FoldedUpsample
from diffusers_helper.miopen_fallback import initialize_miopen_fallback


@pytest.mark.parametrize("factors", [(2, 2, 2), (1, 2, 2), (2, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_it_gives_the_states_of_diffusers(factors: tuple[int, int, int], frames: int) -> None:
    torch.manual_seed(frames)
    plain = HunyuanVideoUpsampleCausal3D(6, 4, upsample_factor=factors).double()
    states = torch.randn(2, 6, frames, 5, 3, dtype=torch.float64)
    with torch.inference_mode():
        expected = plain(states)
        plain.float()
        result = FoldedUpsample(plain)(states.float())
    assert result.shape == expected.shape
    torch.testing.assert_close(result.double(), expected, atol=2e-6, rtol=0)


def test_it_keeps_the_names_of_the_weights_and_asks_the_fallback() -> None:
    plain = HunyuanVideoUpsampleCausal3D(6)
    folded = FoldedUpsample(plain)
    assert list(folded.state_dict()) == list(plain.state_dict())
    fallback = initialize_miopen_fallback().install(folded)
    with torch.inference_mode():
        folded(torch.randn(1, 6, 3, 4, 4))
    assert fallback.ladder.successes.total() == 1

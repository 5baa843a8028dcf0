"""Tests that the quicker parts of the VAE compute what diffusers' own do."""

import copy
from unittest.mock import patch

import pytest
import torch
from diffusers import AutoencoderKLHunyuanVideo
from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import (
    HunyuanVideoResnetBlockCausal3D,
    HunyuanVideoUpsampleCausal3D,
)

from diffusers_helper.attention import padding
from diffusers_helper.loading.quick_vae import FoldedUpsample, QuickBlock, speed_up
from diffusers_helper.machine.sysfs import computes_bf16
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


@pytest.mark.parametrize("most_values", [2**21, 0])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize(("frames", "out_channels"), [(1, 16), (3, 32)])
def test_a_block_gives_the_states_of_diffusers(
    frames: int, out_channels: int, dtype: torch.dtype, most: float, most_values: int
) -> None:
    torch.manual_seed(frames)
    plain = HunyuanVideoResnetBlockCausal3D(16, out_channels, groups=8).to(dtype)
    states = torch.randn(2, 16, frames, 5, 3).to(dtype)
    quick = copy.deepcopy(plain)
    QuickBlock.replace(quick)
    with torch.inference_mode(), patch.object(padding, "_MAX_VALUES", most_values):
        expected = copy.deepcopy(plain).double()(states.double())
        result = quick(states)
        # Without instructions for bf16, torch's convolutions return another layout.
        if most_values and dtype is torch.bfloat16 and computes_bf16():
            assert result.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(result.double(), expected, atol=most, rtol=most)


def test_a_decode_differs_by_rounding_and_an_encoding_not_at_all() -> None:
    torch.manual_seed(1)
    plain = AutoencoderKLHunyuanVideo(
        block_out_channels=(8, 16, 16, 16), layers_per_block=1, norm_num_groups=8
    ).eval()  # fmt: skip
    quick = copy.deepcopy(plain)
    speed_up(quick)
    assert list(quick.state_dict()) == list(plain.state_dict())
    frames, latents = torch.rand(1, 3, 5, 32, 48), torch.randn(1, 16, 2, 4, 6)
    with torch.inference_mode():
        torch.testing.assert_close(quick.decoder(latents), plain.decoder(latents), atol=1e-5, rtol=0)
        assert torch.equal(quick.encoder(frames), plain.encoder(frames))

"""Tests that the estimates of Helios' memory are met by networks of random weights."""

from typing import Any

import pytest
import torch
from diffusers import HeliosTransformer3DModel
from torch import Tensor
from transformers import UMT5Config, UMT5EncoderModel

from benchmarks.calibrate_memory import measure, network
from diffusers_helper.families.packing import LATENT_WINDOW_SIZE, frame_indices
from diffusers_helper.helios.work import HeliosCondition, HeliosDenoiser
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.estimates import helios_bytes, latent_tokens, umt5_bytes
from diffusers_helper.sampling.guidance import CleanLatents

TYPES = (torch.bfloat16, torch.float32)
ROPE = {32: (12, 10, 10), 64: (24, 20, 20), 128: (44, 42, 42)}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("heads", "head_dim", "height", "width"), [(8, 32, 96, 160), (4, 64, 128, 128), (4, 128, 128, 128)]
)
def test_a_pass_takes_what_was_estimated(
    heads: int, head_dim: int, height: int, width: int, dtype: torch.dtype
) -> None:
    module: Any = HeliosTransformer3DModel(
        num_attention_heads=heads, attention_head_dim=head_dim, text_dim=64, freq_dim=64, num_layers=2,
        ffn_dim=heads * head_dim * 27 // 10, rope_dim=ROPE[head_dim],
    ).eval()  # fmt: skip
    module.to(dtype)

    def latents(frames: int) -> Tensor:
        return torch.randn(1, 16, frames, height // 8, width // 8)

    def work() -> None:
        condition = HeliosCondition(positive=torch.randn(1, 512, 64), negative=None, cfg=1.0, cfg_rescale=0.0)
        context = CleanLatents(frame_indices("forward"), latents(1), latents(1), latents(2), latents(16))
        HeliosDenoiser(module, condition, context)(latents(LATENT_WINDOW_SIZE), torch.tensor(0.9))

    described, tokens = network(module, module.config, dtype), latent_tokens(height, width)
    estimated = helios_bytes(described, height, width, tokens, backend=Backend())
    assert 1 <= estimated / measure(module, work) <= 1.15


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("width", "heads", "tokens"), [(256, 4, 512), (256, 16, 512), (512, 8, 64), (512, 8, 300)]
)
def test_an_encoding_takes_what_was_estimated(
    width: int, heads: int, tokens: int, dtype: torch.dtype
) -> None:
    config = UMT5Config(
        vocab_size=32, d_model=width, d_kv=width // heads, d_ff=width * 5 // 2, num_layers=3, num_heads=heads
    )
    module: Any = UMT5EncoderModel(config).eval()
    module.to(dtype)
    ids = torch.ones(1, tokens, dtype=torch.int64)
    measured = measure(module, lambda: module(input_ids=ids, attention_mask=ids).last_hidden_state)
    estimated = umt5_bytes(network(module, config.to_dict(), dtype), tokens)
    assert 1 <= estimated / measured <= 1.25

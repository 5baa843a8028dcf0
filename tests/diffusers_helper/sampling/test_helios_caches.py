"""Tests that step caches on Helios give what the hooks of diffusers give, once these know its blocks."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from diffusers.hooks import FirstBlockCacheConfig, MagCacheConfig, TaylorSeerCacheConfig
from diffusers.hooks._helpers import TransformerBlockMetadata, TransformerBlockRegistry
from diffusers.models.transformers.transformer_helios import HeliosTransformerBlock
from torch import Tensor

from diffusers_helper.families.step_caches import STEP_CACHES
from diffusers_helper.helios.work import blocks
from diffusers_helper.sampling.step_cache import open_passes
from tests.support.tiny_helios import tiny_transformer

STEPS = 12
MAGNITUDES = (1.0, 1.3, 1.2, *[1.02] * 7, 0.96, 0.8)
SHAPES = {"short": 2, "mid": 2, "long": 16}
CACHES: dict[str, Any] = {
    "first-block": FirstBlockCacheConfig(threshold=0.05),
    "taylorseer": TaylorSeerCacheConfig(use_lite_mode=True, taylor_factors_dtype=torch.float32),
    "magcache": MagCacheConfig(
        threshold=0.1, max_skip_steps=3, retention_ratio=0.2, num_inference_steps=STEPS,
        mag_ratios=torch.tensor(MAGNITUDES),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def known_blocks() -> Iterator[None]:
    metadata = TransformerBlockMetadata(return_hidden_states_index=0, return_encoder_hidden_states_index=None)
    TransformerBlockRegistry.register(HeliosTransformerBlock, metadata)
    with torch.inference_mode():
        yield


def latents(step: int) -> Tensor:
    """Return noisy latents of a step, which change little from one step to the next."""
    draw = torch.Generator().manual_seed(1)
    start, end = (torch.randn(1, 16, 9, 8, 8, generator=draw) for _ in range(2))
    return start + (end - start) * 0.3 * step / STEPS


def compute(network: Any, x: Tensor, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    arguments: dict[str, Any] = {"encoder_hidden_states": torch.randn(1, 8, 16, generator=draw)}
    begin = 0
    for name, frames in SHAPES.items():
        arguments[f"latents_history_{name}"] = torch.randn(1, 16, frames, 8, 8, generator=draw)
        arguments[f"indices_latents_history_{name}"] = torch.arange(begin, begin + frames)[None]
        begin += frames
    arguments["indices_hidden_states"] = torch.arange(begin, begin + 9)[None]
    return network(x, torch.tensor([900.0 - 20 * step]), **arguments, return_dict=False)[0]


@pytest.mark.parametrize("name", CACHES)
def test_the_results_are_those_of_the_hooks_of_diffusers(name: str) -> None:
    torch.manual_seed(3)
    network: Any = tiny_transformer()
    plain = [compute(network, latents(step), step) for step in range(STEPS)]
    with open_passes(STEP_CACHES[name], STEPS, MAGNITUDES, network, blocks(network, latents(0))) as passes:
        results = [
            passes("", latents(step), partial(compute, network, latents(step), step)) for step in range(STEPS)
        ]
    network.enable_cache(CACHES[name])
    with network.cache_context("positive"):
        hooked = [compute(network, latents(step), step) for step in range(STEPS)]
    network.disable_cache()
    different = [not torch.equal(*pair) for pair in zip(results, plain, strict=True)]
    assert 2 <= passes.skipped == different.count(True)
    # The hooks may skip the last step, which is computed here.
    torch.testing.assert_close(results[:-1], hooked[:-1], rtol=0, atol=1e-5)

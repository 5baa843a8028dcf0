"""Tests that step caches skip what their papers' code skips, share nothing, and copy no weights for it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import (
    FirstBlockCacheConfig,
    HunyuanVideoFramepackTransformer3DModel,
    MagCacheConfig,
    TaylorSeerCacheConfig,
)
from torch import Tensor, nn

from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.step_caches import STEP_CACHES, StepCache, nearest_interp
from diffusers_helper.framepack.work import blocks
from diffusers_helper.memory.residency import Resident
from diffusers_helper.memory.staging import Staging
from diffusers_helper.sampling.step_cache import Passes, PassesByBlocks, _Branch, open_passes
from tests.support.deep_model import pass_arguments

STEPS = 10
CPU = torch.device("cpu")
MAGNITUDES = FRAMEPACK.mag_ratios["inverted"]


@pytest.fixture(scope="module")
def network() -> HunyuanVideoFramepackTransformer3DModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = HunyuanVideoFramepackTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, rope_axes_dim=(4, 6, 6), num_layers=2,
            num_single_layers=4, num_refiner_layers=1, text_embed_dim=16, pooled_projection_dim=16,
            image_proj_dim=16, has_image_proj=True, has_clean_x_embedder=True,
        )  # fmt: skip
    return made.eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def latents(step: int) -> Tensor:
    """Return the noisy latents of a step, which approach a picture as a sampler's do."""
    generator = torch.Generator().manual_seed(9)
    picture, noise = (torch.randn(1, 16, 9, 8, 8, generator=generator) for _ in range(2))
    level = 1 - 0.1 * step / STEPS
    return (1 - level) * picture + level * noise


def compute(network: nn.Module, x: Tensor, step: int, text: float = 1.0) -> Tensor:
    arguments = pass_arguments() | {"hidden_states": x, "timestep": torch.tensor([1000 - 0.4 * step])}
    arguments["encoder_hidden_states"] = text * arguments["encoder_hidden_states"]
    return network(**arguments, return_dict=False)[0]


def sample(network: nn.Module, passes: Passes, steps: int = STEPS, branch: str = "") -> list[Tensor]:
    return [
        passes(branch, latents(step), partial(compute, network, latents(step), step)) for step in range(steps)
    ]


def with_cache(network: Any, cache: StepCache | None, steps: int = STEPS) -> tuple[list[Tensor], int]:
    with open_passes(cache, steps, MAGNITUDES, network, blocks(network, latents(0))) as passes:
        return sample(network, passes, steps), passes.skipped


def with_hook(network: Any, config: object, steps: int = STEPS) -> list[Tensor]:
    network.enable_cache(config)
    try:
        with network.cache_context("positive"):
            return [compute(network, latents(step), step) for step in range(steps)]
    finally:
        network.disable_cache()


def same(outputs: list[Tensor], expected: list[Tensor]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(outputs, expected, strict=True)]


@pytest.fixture(scope="module")
def plain(network: HunyuanVideoFramepackTransformer3DModel) -> list[Tensor]:
    return [compute(network, latents(step), step) for step in range(STEPS)]


def always(steps: int, mag_ratios: object) -> Callable[[int, float], bool]:
    return lambda step, change: True


def never(steps: int, mag_ratios: object) -> Callable[[int, float], bool]:
    return lambda step, change: False


@pytest.mark.parametrize("name", [None, *STEP_CACHES])
def test_steps_that_are_computed_have_the_same_bits_as_without_a_cache(
    name: str | None, network: nn.Module, plain: list[Tensor]
) -> None:
    cache = replace(STEP_CACHES[name], rule=never) if name else None
    outputs, skipped = with_cache(network, cache)
    assert all(same(outputs, plain))
    assert skipped == 0
    assert not any("forward" in block.__dict__ for block in blocks(network, latents(0)).modules)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STEP_CACHES)
def test_the_first_and_the_last_step_are_always_computed(
    name: str, network: nn.Module, plain: list[Tensor]
) -> None:
    outputs, skipped = with_cache(network, replace(STEP_CACHES[name], rule=always))
    assert same(outputs, plain) == [True, *[False] * (STEPS - 2), True]
    assert skipped == STEPS - 2


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("first-block", FirstBlockCacheConfig(threshold=0.05)),
        (
            "taylorseer",
            TaylorSeerCacheConfig(use_lite_mode=True, taylor_factors_dtype=torch.float32),
        ),
        (
            "magcache",
            MagCacheConfig(
                threshold=0.1, max_skip_steps=3, retention_ratio=0.2, num_inference_steps=STEPS,
                mag_ratios=torch.tensor(nearest_interp(MAGNITUDES, STEPS)),
            ),
        ),
    ],
)  # fmt: skip
def test_the_results_are_those_of_the_hooks_of_diffusers(
    name: str, config: object, network: nn.Module, plain: list[Tensor]
) -> None:
    outputs, skipped = with_cache(network, STEP_CACHES[name])
    hooked = with_hook(network, config)
    assert 2 <= skipped == [torch.equal(*pair) for pair in zip(outputs, plain, strict=True)].count(False)
    # The hooks may skip the last step, which is computed here.
    torch.testing.assert_close(outputs[:-1], hooked[:-1], rtol=0, atol=1e-5)
    assert torch.equal(outputs[-1], plain[-1])


def test_magcache_computes_twelve_of_25_steps_of_framepack() -> None:
    for mag_ratios in FRAMEPACK.mag_ratios.values():
        rule = STEP_CACHES["magcache"].rule(25, mag_ratios)
        assert [rule(step, 0.0) for step in range(1, 24)].count(False) == 10


@pytest.mark.parametrize(("name", "in_a_row"), [("teacache-gentle", 1), ("teacache", 2)])
def test_teacache_is_that_of_framepack(
    name: str, in_a_row: int, network: HunyuanVideoFramepackTransformer3DModel, plain: list[Tensor]
) -> None:
    """Compare with the loop of FramePack's model: the polynomial of the change of the modulated input."""
    threshold = {1: 0.1, 2: 0.15}[in_a_row]
    modulated: list[Tensor] = []
    first = network.transformer_blocks[0]
    hook = first.get_submodule("norm1").register_forward_hook(
        lambda *arguments: modulated.append(arguments[2][0])
    )
    for step in range(STEPS):
        compute(network, latents(step), step)
    hook.remove()
    expected, so_far = list[bool](), 0.0
    for step in range(STEPS):
        if step in (0, STEPS - 1):
            so_far = 0.0
            expected.append(True)
            continue
        x = ((modulated[step] - modulated[step - 1]).abs().mean() / modulated[step - 1].abs().mean()).item()
        coefficients = (733.226126, -401.131952, 67.5869174, -3.149878, 0.0961237896)
        so_far += sum(c * x ** (4 - power) for power, c in enumerate(coefficients))
        expected.append(so_far >= threshold)
        so_far = 0.0 if so_far >= threshold else so_far
    outputs, skipped = with_cache(network, STEP_CACHES[name])
    assert same(outputs, plain) == expected
    assert skipped == expected.count(False) >= 2


@pytest.mark.parametrize("name", STEP_CACHES)
def test_branches_and_sections_share_nothing(name: str, network: nn.Module) -> None:
    cache, seen = STEP_CACHES[name], blocks(network, latents(0))  # type: ignore[arg-type]
    alone, _ = with_cache(network, cache)
    with open_passes(cache, STEPS, MAGNITUDES, network, seen) as passes:
        both = list[Tensor]()
        for step in range(STEPS):
            x = latents(step)
            both.append(passes("positive", x, partial(compute, network, x, step)))
            passes("negative", x, partial(compute, network, x, step, 9.0))
    assert all(same(both, alone))
    assert all(same(with_cache(network, cache)[0], alone))


@pytest.mark.parametrize("first", [0, 1], ids=["first block streamed", "first block resident"])
@pytest.mark.parametrize("name", STEP_CACHES)
def test_a_skipped_step_copies_at_most_the_block_that_decides(
    name: str, first: int, network: nn.Module
) -> None:
    expected, _ = with_cache(network, STEP_CACHES[name])
    seen = blocks(network, latents(0))  # type: ignore[arg-type]
    sizes = [sum(weight.nbytes for weight in block.parameters()) for block in seen.modules]
    copied, streamed = list[int](), range(first, len(sizes))
    resident = Resident(network, Staging(CPU), blocks=seen.modules, streamed=streamed)
    with open_passes(STEP_CACHES[name], STEPS, MAGNITUDES, network, seen) as passes:
        skips, outputs = list[bool](), list[Tensor]()
        for step in range(STEPS):
            x, before = latents(step), (passes.skipped, resident.bytes_streamed)
            outputs.append(passes("", x, partial(compute, network, x, step)))
            skips.append(passes.skipped > before[0])
            copied.append(resident.bytes_streamed - before[1])
    resident.close()
    assert all(same(outputs, expected))
    decides = name in ("teacache", "teacache-gentle", "first-block") and not first
    assert (
        max(taken for taken, is_skipped in zip(copied, skips, strict=True) if is_skipped)
        <= decides * sizes[0]
    )
    assert sum(copied) <= skips.count(False) * sum(sizes[first:])


@pytest.mark.parametrize(("cache", "expected"), [("teacache", [1.0, 1.0]), ("first-block", [1.0, 3.0])])
def test_the_signal_of_a_skipped_step_counts_for_the_next_one_where_the_rule_sums_it(
    cache: str, expected: list[float]
) -> None:
    passes, changes = PassesByBlocks.__new__(PassesByBlocks), list[float]()
    passes._cache, passes._steps = STEP_CACHES[cache], 9
    state = _Branch(lambda step, change: not changes.append(change))  # skips each step that it may
    for state.step, signal in enumerate((1.0, 2.0, 4.0)):
        passes._measure(state, torch.tensor([signal]))
    assert changes == expected


def test_easycache_foretells_the_change_of_the_output_by_that_of_the_input(network: nn.Module) -> None:
    changes = list[float]()
    cache = replace(
        STEP_CACHES["easycache"],
        rule=lambda steps, ratios: lambda step, change: changes.append(change) or step in (3, 4),
    )
    inputs, results = (1.0, 3.0, 4.0, 4.5, 5.0, 7.0, 8.0), (10.0, 14.0, 20.0, 0.0, 0.0, 30.0, 40.0)
    with open_passes(cache, 7, (), network, blocks(network, latents(0))) as passes:  # type: ignore[arg-type]
        pairs = zip(map(torch.tensor, inputs), map(torch.tensor, results), strict=True)
        outputs = [passes("", x, lambda y=y: y).item() for x, y in pairs]
    assert outputs == [10, 14, 20, 4.5 + 16, 5 + 16, 30, 40]
    assert changes == pytest.approx([float("inf"), 2 * 1 / 14, 6 * 0.5 / 20, 6 * 1 / 20, 6 * 3 / 20])


@pytest.mark.parametrize("steps", [10, 20, 25, 50])
def test_easycache_skips_within_its_share_of_the_steps_alone(steps: int) -> None:
    rule = STEP_CACHES["easycache"].rule(steps, ())
    skipped = [step for step in range(steps) if rule(step, 0.0)]
    assert skipped == [
        step for step in range(steps) if 15 * steps <= 100 * step and 100 * (step + 1) <= 95 * steps
    ]


@pytest.mark.parametrize("streamed", [(), (1,)])
def test_passes_are_repeated_as_they_were_where_no_weights_are_copied(
    streamed: tuple[int, ...], network: nn.Module
) -> None:
    repeated, seen = list[object](), blocks(network, latents(0))  # type: ignore[arg-type]
    resident = Resident(network, Staging(CPU), blocks=seen.modules, streamed=streamed)
    for name in (None, "magcache", "taylorseer"):
        with open_passes(
            STEP_CACHES.get(str(name)), STEPS, MAGNITUDES, network, seen,
            lambda key, compute: repeated.append(key) or compute(),
        ) as passes:  # fmt: skip
            sample(network, passes, 1, "positive")
    resident.close()
    assert repeated == [("positive", latents(0).shape)] * (not streamed)


def test_a_step_is_skipped_if_none_of_its_passes_is_computed(network: nn.Module) -> None:
    skips, counts, x = {"positive": {1, 2, 3, 5}, "negative": {2, 3, 4, 5}}, list[int](), torch.zeros(1)
    with open_passes(STEP_CACHES["taylorseer"], 7, (), network, blocks(network, latents(0))) as passes:  # type: ignore[arg-type]
        passes._branches = {
            name: _Branch(lambda step, change, steps=steps: step in steps) for name, steps in skips.items()
        }
        for _ in range(7):
            for name in skips:
                passes(name, x, lambda: x)
            counts.append(passes.skipped)
    assert counts == [0, 0, 1, 2, 2, 3, 3]


def test_a_cache_is_planned_with_the_tensors_that_it_keeps() -> None:
    sizes = {name: cache.state_bytes(100, 60, 8, 2, 1000) for name, cache in STEP_CACHES.items()}
    noisy, whole = 60 * 8 * 2, 100 * 8 * 2
    signals = dict.fromkeys(("teacache-gentle", "teacache", "first-block"), noisy + whole)
    assert sizes == {**signals, "magcache": noisy, "taylorseer": 3000, "easycache": 3000}

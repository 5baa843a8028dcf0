"""Tests that a network attends in the chosen way, and that slices are exact and keep to their plan."""

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    attention_backend,
    dispatch_attention_fn,
)
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from cache.replaced import ReplacedFunctions
from diffusers_helper.attention.backends import BACKENDS, check_backend, slice_bytes, slice_size
from diffusers_helper.attention.dispatch import (
    attention_function,
    use_attention_backend,
)
from diffusers_helper.attention.slices import sliced_attention
from diffusers_helper.errors import InputError
from diffusers_helper.memory.accounting import Device
from diffusers_helper.planning.backend import Backend
from tests.support.tiny_model import TEXT_DIM, tiny_transformer

SMALL = 20_000  # bytes; a few queries of the tests' shapes
OURS = ("native", "sliced", "flash", "math")  # those that every CPU has


@pytest.fixture(scope="module")
def network() -> HunyuanVideoFramepackTransformer3DModel:
    torch.manual_seed(3)
    return tiny_transformer()


def inputs(padding: tuple[int, ...], side: int = 8) -> dict[str, Any]:
    """Return the inputs for a batch of texts of 7 tokens, of which the last ones are padding."""
    batch = len(padding)
    mask = torch.arange(7) < 7 - torch.tensor(padding)[:, None]
    frames = {"latents_clean": 2, "latents_history_2x": 2, "latents_history_4x": 16}
    latents = {name: torch.randn(batch, 16, count, side, side) for name, count in frames.items()}
    indices = {f"indices_{name}": torch.arange(count) for name, count in frames.items()}
    return {
        "hidden_states": torch.randn(batch, 16, 9, side, side), "timestep": torch.full((batch,), 500.0),
        "encoder_hidden_states": torch.randn(batch, 7, TEXT_DIM), "encoder_attention_mask": mask,
        "pooled_projections": torch.randn(batch, TEXT_DIM), "image_embeds": torch.randn(batch, 5, TEXT_DIM),
        "indices_latents": torch.arange(9), "guidance": torch.full((batch,), 6000.0),
        "return_dict": False, **latents, **indices,
    }  # fmt: skip


@pytest.mark.parametrize("way", OURS)
@pytest.mark.parametrize("padding", [(0,), (3,), (2, 0)], ids=["whole", "padded", "masked batch"])
def test_a_transformer_gives_the_same_in_each_way(
    way: str, padding: tuple[int, ...], network: HunyuanVideoFramepackTransformer3DModel
) -> None:
    arguments = inputs(padding)
    if way == "flash" and len(padding) > 1:
        pytest.skip("the flash kernel takes no mask")
    with torch.inference_mode():
        expected = network(**arguments)[0]
        with use_attention_backend(network, way, SMALL):
            result = network(**arguments)[0]
        again = network(**arguments)[0]
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(again, expected)  # what is left behind is the network as it was
    if way == "native":
        assert torch.equal(result, expected)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (37, 53), (64, 7)])
@pytest.mark.parametrize("limit", [1, SMALL, 2**28])
def test_slices_of_any_size_are_what_sdpa_gives(queries: int, keys: int, limit: int) -> None:
    q, k, v = (torch.randn(2, 3, count, 12) for count in (queries, keys, keys))
    sees = torch.rand(2, 1, 1, keys) > 0.5
    sees[..., 0] = True
    masks: tuple[Tensor | None, ...] = (
        None, sees, torch.randn(queries, keys), torch.randn(2, 3, queries, keys)
    )  # fmt: skip
    for mask in masks:
        for scale in (None, 0.1):
            expected = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            with ReplacedFunctions(
                {functional.scaled_dot_product_attention: partial(sliced_attention, limit)}
            ):
                result = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_slices_of_text_encoders_are_what_sdpa_gives(key_heads: int) -> None:
    q, k, v = torch.randn(2, 6, 37, 12), torch.randn(2, key_heads, 37, 12), torch.randn(2, key_heads, 37, 12)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    result = sliced_attention(SMALL, q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_slices_of_16_bit_are_computed_in_32(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, 40, 16).to(dtype) for _ in range(3))
    with ReplacedFunctions({functional.scaled_dot_product_attention: partial(sliced_attention, SMALL)}):
        result = scaled_dot_product_attention(q, k, v)
    expected = scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected.to(dtype), atol=0, rtol=torch.finfo(dtype).eps)


def test_slices_in_bf16_on_a_cpu_are_as_exact_as_sdpa() -> None:
    q, k, v = (torch.randn(1, 3, 500, 44).bfloat16() for _ in range(3))
    errors = [
        error_of(attend(q, k, v), q, k, v)
        for attend in (scaled_dot_product_attention, partial(sliced_attention, SMALL))
    ]
    assert errors[1] < 1.1 * errors[0] < 5e-3
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"  # other products stay in fp32


def error_of(result: Tensor, query: Tensor, key: Tensor, value: Tensor, **others: Any) -> float:
    """Return the root mean square of the error, divided by that of the result in fp64."""
    expected = scaled_dot_product_attention(query.double(), key.double(), value.double(), **others)
    return float((result - expected).norm() / expected.norm())


@pytest.mark.parametrize("sharpness", [1.0, 4.0, 11.0])
@pytest.mark.parametrize("has_mask", [False, True])
def test_products_in_fp16_are_close_to_fp32_math(sharpness: float, has_mask: bool) -> None:
    # The norms of queries and keys leave values of about 1, and scores up to 11 times the norms' weights.
    q, k = (functional.rms_norm(torch.randn(1, 3, 500, 128), (128,)) for _ in range(2))
    v, k = torch.randn(1, 3, 500, 128) * 30, k + 0.5 * q
    mask = {"attn_mask": torch.rand(1, 1, 1, 500) > 0.3} if has_mask else {}
    result = sliced_attention(SMALL, q * sharpness, k, v, **mask, in_fp16=True)
    assert result.dtype == torch.float32
    error = error_of(result, q * sharpness, k, v, **mask)
    assert 1e-6 < error < 2e-3  # that of fp32 is smaller, and that of bf16 about 4e-3
    assert torch.equal(sliced_attention(SMALL, q, k, v), sliced_attention(SMALL, q, k, v, in_fp16=False))


@pytest.mark.parametrize("scale", [(300.0, 300.0, 1.0), (1.0, 1.0, 1e5), (1e5, 1.0, 1.0)])
def test_a_head_whose_values_overflow_fp16_is_computed_in_fp32(scale: tuple[float, ...]) -> None:
    inputs = [torch.randn(1, 3, 50, 16) for _ in range(3)]
    for tensor, factor in zip(inputs, scale, strict=True):
        tensor[:, 1] *= factor
    result = sliced_attention(SMALL, *inputs, in_fp16=True)
    wide = sliced_attention(SMALL, *inputs, in_fp16=False)
    assert torch.equal(result[:, 1], wide[:, 1])
    assert not torch.equal(result[:, 0], wide[:, 0])
    assert result.isfinite().all()


@pytest.mark.parametrize("in_halves", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [100_000, 2**28])
def test_a_slice_takes_no_more_than_its_plan(dtype: torch.dtype, limit: int, in_halves: bool) -> None:
    q, k, v = (torch.randn(1, 2, 400, 16).to(dtype) for _ in range(3))
    account, planned = Device(), slice_size(400, 16, limit)[1]
    with torch.inference_mode():
        account.adopt([q, k, v])
        before = account.allocated_bytes()
        with account:
            result = sliced_attention(limit, q, k, v, in_fp16=in_halves)
    result_bytes = result.numel() * result.element_size()
    assert account.peak_bytes() - before - result_bytes <= planned <= limit
    assert Backend("math", attention_backend="sliced", slice_bytes=limit).score_bytes(2, 400, 16) == planned


def test_the_slices_follow_from_the_cap() -> None:
    assert slice_bytes(16 * 10**9) == slice_bytes(0) == 2**28
    assert slice_bytes(10**9) == 10**9 // 16
    full = Backend(attention_backend="sliced", slice_bytes=slice_bytes(12 * 10**9)).score_bytes(
        24, 18485, 128
    )
    assert 0.9 * 2**28 < full <= 2**28
    assert Backend("math").score_bytes(24, 18485, 128) == 8 * 24 * 18485**2
    assert Backend("math", attention_backend="triton").score_bytes(24, 18485, 128) == 0
    assert Backend("fused", attention_backend="math").score_bytes(24, 18485, 128) == 8 * 24 * 18485**2


def test_no_state_of_the_process_changes(network: HunyuanVideoFramepackTransformer3DModel) -> None:
    q = torch.randn(1, 8, 2, 16)
    plain = dispatch_attention_fn(q, q, q)
    with attention_backend("_native_flash"):
        for way in OURS:
            with use_attention_backend(network, way, SMALL):
                assert _active() == AttentionBackendName._NATIVE_FLASH
            with suppress(ZeroDivisionError), use_attention_backend(network, way, SMALL):
                _ = 1 / 0
            assert _active() == AttentionBackendName._NATIVE_FLASH
    assert _active() == AttentionBackendName.NATIVE
    processors = [getattr(module, "processor", None) for module in network.modules()]
    assert {getattr(processor, "_attention_backend", None) for processor in processors} == {None}
    assert torch.equal(dispatch_attention_fn(q, q, q), plain)


def _active() -> AttentionBackendName:
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    return _AttentionBackendRegistry.get_active_backend()[0]


def test_a_way_that_is_not_there_is_refused(network: HunyuanVideoFramepackTransformer3DModel) -> None:
    with pytest.raises(InputError, match="attention is triton, but it needs a GPU"):
        check_backend("triton", has_gpu=False)
    with pytest.raises(InputError, match=r"the package sageattention is not installed \(version 2 is built"):
        check_backend("sage", has_gpu=True)
    for name in OURS:
        check_backend(name, has_gpu=False)
    with pytest.raises(InputError, match=r"attention is sage, which diffusers cannot use \(.*2\.1\.1"):
        attention_function("sage", SMALL)
    with pytest.raises(InputError), use_attention_backend(network, "triton", SMALL):
        pass


def test_every_way_is_known_to_the_dispatcher() -> None:
    names = {backend.value for backend in AttentionBackendName}
    assert {way.dispatcher_name for way in BACKENDS.values() if way.dispatcher_name} <= names
    assert len(BACKENDS) == len({way.label for way in BACKENDS.values()})

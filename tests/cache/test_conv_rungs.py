"""Tests that every rung agrees with `torch.nn.functional.conv3d` on a CPU within the dtype's rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from cache import conv_rungs
from cache.conv import case_of
from cache.conv_rungs import (
    CHOSEN_RUNGS,
    RUNGS,
    Convolution,
    FlatConvolution,
    Rung,
    input_of,
    output_shape,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RULES = settings(max_examples=50)
Call = tuple[Tensor, Convolution]


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype) -> Call:
    """Draw a valid convolution of any shape, stride, padding and dilation."""

    def three(low: int, high: int) -> tuple[int, int, int]:
        numbers = st.integers(low, high)
        return draw(numbers), draw(numbers), draw(numbers)

    kernel, stride, padding, dilation = three(1, 3), three(1, 3), three(0, 2), three(1, 2)
    spans = [dilation[i] * (kernel[i] - 1) + 1 for i in range(3)]
    extra = three(0, 5)
    sides = [max(1, spans[i] - 2 * padding[i]) + extra[i] for i in range(3)]
    groups, per_group = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(1, 3))
    out = groups * draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))

    def tensor(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    x = tensor(draw(st.integers(1, 2)), groups * per_group, *sides)
    bias = tensor(out) if draw(st.booleans()) else None
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last_3d)
    return x, Convolution(tensor(out, per_group, *kernel), bias, stride, padding, dilation, groups)


@st.composite
def flat_calls(draw: st.DrawFn, dtype: torch.dtype) -> Call:
    """Draw a valid 2D convolution of any shape, stride, padding and dilation."""
    x, conv = draw(calls(dtype))
    sizes = {
        name: (first, *getattr(conv, name)[1:])
        for name, first in (("stride", 1), ("padding", 0), ("dilation", 1))
    }
    return x[:, :, :1], FlatConvolution(conv.weight[:, :, :1], conv.bias, groups=conv.groups, **sizes)


def expected_and_margin(call: Call) -> tuple[Tensor, Tensor]:
    """Return the exact result and the largest error that sums in fp32, rounded once at the end, may have.

    Rounding to nearest is off by at most half of eps. Intermediate sums that are rounded to the dtype exceed
    this margin.
    """
    x, conv = call
    bias = None if conv.bias is None else conv.bias.double()
    wide = replace(conv, weight=conv.weight.double(), bias=bias)
    exact = wide(x.double())
    sizes = replace(wide, weight=wide.weight.abs(), bias=None if bias is None else bias.abs())(
        x.double().abs()
    )
    terms, limits = math.prod(conv.weight.shape[1:]) + 1, torch.finfo(x.dtype)
    summed = terms * torch.finfo(torch.float32).eps * sizes
    return exact, summed + limits.eps / 2 * (exact.abs() + summed) + limits.smallest_normal * limits.eps


def check(rung: Rung, call: Call) -> None:
    if rung.name == "kitchen":
        pytest.importorskip("comfy_kitchen")
    assert rung.supports(case_of(*call)) or rung.name in (*CHOSEN_RUNGS, "tiles")
    expected, margin = expected_and_margin(call)
    result = rung.run(*call)
    assert result.shape == expected.shape
    assert result.dtype == call[0].dtype
    assert ((result.double() - expected).abs() <= margin).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in RUNGS if name != "kitchen"])
def test_any_convolution(name: str, dtype: torch.dtype) -> None:
    @given(calls(dtype))
    @RULES
    def run(call: Call) -> None:
        check(RUNGS[name], call)

    run()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in RUNGS if name not in (*CHOSEN_RUNGS, "taps")])
def test_any_flat_convolution(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_rungs, "STEP_BYTES", 700)

    @given(flat_calls(dtype))
    @RULES
    def run(call: Call) -> None:
        check(RUNGS[name], call)

    run()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in RUNGS if name != "taps"])
def test_the_patches_of_a_vision_encoder(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    x, weight = (
        torch.randn(*shape, generator=generator) for shape in ((1, 3, 1, 56, 56), (48, 3, 1, 14, 14))
    )
    conv = FlatConvolution(
        weight.to(dtype) / 30,
        torch.randn(48, generator=generator).to(dtype),
        (1, 14, 14),
        (0, 0, 0),
        (1, 1, 1),
        1,
    )
    check(RUNGS[name], (x.to(dtype), conv))


@pytest.mark.parametrize(
    ("limit", "dtype"), [(1, DTYPES[0]), (700, DTYPES[1]), (2500, DTYPES[2]), (5000, DTYPES[0])], ids=str
)
@pytest.mark.parametrize("name", ["taps", "tiles"])
def test_many_small_steps(name: str, limit: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in steps that do not divide the result, one pixel or frame each, and in a few large ones."""
    monkeypatch.setattr(conv_rungs, "STEP_BYTES", limit)

    @given(calls(dtype))
    @RULES
    def run(call: Call) -> None:
        check(RUNGS[name], call)

    run()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RUNGS)
def test_as_many_terms_as_in_a_model(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add so many terms that intermediate roundings would show; expect the error of one rounding."""
    monkeypatch.setattr(conv_rungs, "STEP_BYTES", 2**18)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 96, 5, 10, 12, generator=generator).to(dtype)
    weight = (torch.randn(32, 96, 3, 3, 3, generator=generator) / 50).to(dtype)
    bias = torch.randn(32, generator=generator).to(dtype)
    call = (x, Convolution(weight, bias, (1, 1, 1), (0, 1, 1), (1, 1, 1), 1))
    check(RUNGS[name], call)
    exact, _ = expected_and_margin(call)
    plain = (call[1](x).double() - exact).square().mean().sqrt()
    # In fp32 the processor chooses the order of the sum, which gives one random rounding for each term.
    terms, size = math.prod(weight.shape[1:]), exact.square().mean().sqrt()
    summed = terms**0.5 * torch.finfo(torch.float32).eps * size
    assert (RUNGS[name].run(*call).double() - exact).square().mean().sqrt() <= 1.02 * plain + summed


@pytest.mark.parametrize("name", RUNGS)
def test_the_convolutions_of_the_models(name: str) -> None:
    """Compute convolutions of the models: causal padding by a module before, strides, and patches."""
    generator = torch.Generator().manual_seed(1)
    none, ones, twos = (0, 0, 0), (1, 1, 1), (2, 2, 2)
    x = torch.randn(1, 4, 5, 10, 12, generator=generator)
    causal = functional.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate")
    for kernel, stride, source in (
        ((3, 3, 3), ones, causal),
        ((3, 3, 3), twos, causal),
        ((3, 3, 3), (1, 2, 2), causal),
        ((1, 1, 1), ones, x),
        ((1, 2, 2), (1, 2, 2), x),
        ((2, 4, 4), (2, 4, 4), x[..., :8, :]),
        ((4, 8, 8), (4, 8, 8), x[..., :8, :8]),
    ):
        weight = torch.randn(6, 4, *kernel, generator=generator)
        bias = torch.randn(6, generator=generator)
        check(RUNGS[name], (source, Convolution(weight, bias, stride, none, ones, 1)))


def test_tiles_never_ask_for_the_whole_and_ask_for_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch the shapes of tiles: larger ones need the missing memory, each new one a kernel search."""
    shapes: list[tuple[int, ...]] = []
    plain = functional.conv3d

    def watched(x: Tensor, *rest: Any) -> Tensor:
        shapes.append(tuple(x.shape))
        return plain(x, *rest)

    monkeypatch.setattr(functional, "conv3d", watched)
    x, weight = torch.randn(1, 2, 3, 17, 23), torch.randn(2, 2, 3, 3, 3)
    RUNGS["tiles"].run(x, Convolution(weight, None, (1, 1, 1), (1, 1, 1), (1, 1, 1), 1))
    assert len(shapes) > 1
    assert len(set(shapes)) == 1
    assert math.prod(shapes[0]) < math.prod(x.shape)


def test_native_runs_with_miopen_off_and_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain = functional.conv3d
    monkeypatch.setattr(
        functional, "conv3d", lambda *call: seen.append(torch.backends.cudnn.enabled) or plain(*call)
    )
    before = torch.backends.cudnn.enabled
    x = torch.randn(1, 1, 2, 4, 4)
    conv = Convolution(torch.randn(1, 1, 1, 1, 1), None, (1, 1, 1), (0, 0, 0), (1, 1, 1), 1)
    RUNGS["native"].run(x, conv)
    RUNGS["miopen"].run(x, conv)
    assert seen == [False, before]
    assert torch.backends.cudnn.enabled == before


def test_who_cannot_is_known() -> None:
    x, weight = torch.ones(1, 1, 2, 3, 3, dtype=torch.int32), torch.ones(1, 1, 1, 3, 3, dtype=torch.int32)
    case = case_of(x, Convolution(weight, None, (1, 1, 1), (0, 0, 0), (1, 1, 1), 1))
    assert [name for name, rung in RUNGS.items() if not rung.supports(case)] == [
        "kitchen",
        "channels",
        "taps",
        "tiles",
    ]


def test_a_window_sees_zeros_beyond_the_edge() -> None:
    x = torch.arange(1.0, 13.0).view(1, 1, 1, 3, 4)
    weight = torch.ones(1, 1, 1, 3, 3)
    whole = functional.conv3d(x, weight, padding=(0, 1, 1))
    conv = Convolution(weight, None, (1, 1, 1), (0, 1, 1), (1, 1, 1), 1)
    assert output_shape(x.shape, weight.shape, conv) == whole.shape
    for top, left, height, width in ((0, 0, 1, 1), (2, 3, 1, 1), (1, 1, 2, 3), (0, 0, 3, 4)):
        seen = input_of(x, conv, (top, left, height, width))
        part = whole[..., top : top + height, left : left + width]
        assert torch.equal(functional.conv3d(seen, weight), part)

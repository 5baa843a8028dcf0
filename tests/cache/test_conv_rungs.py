"""Every rung gives what `torch.nn.functional.conv3d` gives on a CPU, within the rounding of the dtype."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from cache import conv_rungs
from cache.conv import case_of
from cache.conv_rungs import RUNGS, Rung, output_shape, window_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RULES = settings(max_examples=50, deadline=None, derandomize=True, database=None)
Call = tuple[Tensor, Tensor, Tensor | None, Any, Any, Any, int]


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype) -> Call:
    """A convolution that has a result, of any shape, stride, padding and dilation."""

    def three(low: int, high: int) -> tuple[int, int, int]:
        one = st.integers(low, high)
        return draw(one), draw(one), draw(one)

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
    return x, tensor(out, per_group, *kernel), bias, stride, padding, dilation, groups


def expected_and_margin(call: Call) -> tuple[Tensor, Tensor]:
    """The exact result, and how far from it sums in fp32 that are rounded once, at the end, may lie.

    Rounding to nearest is off by half of eps at most. Sums of numbers in between, rounded to the dtype, do
    not fit into this.
    """
    x, weight, bias, *rest = call
    exact = functional.conv3d(x.double(), weight.double(), None if bias is None else bias.double(), *rest)
    sizes = functional.conv3d(
        x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs(), *rest
    )
    terms, limits = math.prod(weight.shape[1:]) + 1, torch.finfo(x.dtype)
    summed = terms * torch.finfo(torch.float32).eps * sizes
    return exact, summed + limits.eps / 2 * (exact.abs() + summed) + limits.smallest_normal * limits.eps


def check(rung: Rung, call: Call) -> None:
    assert rung.supports(case_of(call[0], call[1], *call[3:])) in (
        None,
        "a single pixel cannot be cut into tiles",
    )
    expected, margin = expected_and_margin(call)
    found = rung.run(*call)
    assert found.shape == expected.shape
    assert found.dtype == call[0].dtype
    assert ((found.double() - expected).abs() <= margin).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RUNGS)
def test_any_convolution(name: str, dtype: torch.dtype) -> None:
    @given(calls(dtype))
    @RULES
    def run(call: Call) -> None:
        check(RUNGS[name], call)

    run()


@pytest.mark.parametrize(
    ("limit", "dtype"), [(1, DTYPES[0]), (700, DTYPES[1]), (2500, DTYPES[2]), (5000, DTYPES[0])], ids=str
)
@pytest.mark.parametrize("name", ["taps", "tiles"])
def test_many_small_steps(name: str, limit: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that do not divide the result, one pixel or frame each, and a few large ones."""
    monkeypatch.setattr(conv_rungs, "STEP_BYTES", limit)

    @given(calls(dtype))
    @RULES
    def run(call: Call) -> None:
        check(RUNGS[name], call)

    run()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RUNGS)
def test_as_many_terms_as_in_a_model(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where roundings in between would add up: the error is that of one rounding, and no rung's is larger."""
    monkeypatch.setattr(conv_rungs, "STEP_BYTES", 2**18)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 96, 5, 10, 12, generator=generator).to(dtype)
    weight = (torch.randn(32, 96, 3, 3, 3, generator=generator) / 50).to(dtype)
    bias = torch.randn(32, generator=generator).to(dtype)
    call = (x, weight, bias, (1, 1, 1), (0, 1, 1), (1, 1, 1), 1)
    check(RUNGS[name], call)
    exact, _ = expected_and_margin(call)
    plain = (functional.conv3d(*call).double() - exact).square().mean().sqrt()
    assert (RUNGS[name].run(*call).double() - exact).square().mean().sqrt() <= 1.02 * plain + 1e-6


@pytest.mark.parametrize("name", RUNGS)
def test_the_convolutions_of_the_models(name: str) -> None:
    """Causal padding by the module before it, strides of the encoder, and the transformer's patches."""
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
        check(RUNGS[name], (source, weight, torch.randn(6, generator=generator), stride, none, ones, 1))


def test_tiles_never_ask_for_the_whole_and_ask_for_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would need the memory that was missing, and a search for each shape."""
    shapes: list[tuple[int, ...]] = []
    plain = functional.conv3d

    def watched(x: Tensor, *rest: Any) -> Tensor:
        shapes.append(tuple(x.shape))
        return plain(x, *rest)

    monkeypatch.setattr(functional, "conv3d", watched)
    x, weight = torch.randn(1, 2, 3, 17, 23), torch.randn(2, 2, 3, 3, 3)
    RUNGS["tiles"].run(x, weight, None, (1, 1, 1), (1, 1, 1), (1, 1, 1), 1)
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
    call = (torch.randn(1, 1, 2, 4, 4), torch.randn(1, 1, 1, 1, 1), None, (1, 1, 1), (0, 0, 0), (1, 1, 1), 1)
    RUNGS["native"].run(*call)
    RUNGS["miopen"].run(*call)
    assert seen == [False, before]
    assert torch.backends.cudnn.enabled == before


def test_who_cannot_says_why() -> None:
    x, weight = torch.ones(1, 1, 2, 3, 3, dtype=torch.int32), torch.ones(1, 1, 1, 3, 3, dtype=torch.int32)
    case = case_of(x, weight, (1, 1, 1), (0, 0, 0), (1, 1, 1), 1)
    reasons = {name: rung.supports(case) for name, rung in RUNGS.items()}
    assert reasons == {
        "miopen": None,
        "taps": "int32 numbers have no 2D convolution on a GPU",
        "native": None,
        "tiles": "a single pixel cannot be cut into tiles",
        "cpu": None,
    }


def test_a_window_sees_zeros_beyond_the_edge() -> None:
    x = torch.arange(1.0, 13.0).view(1, 1, 1, 3, 4)
    weight = torch.ones(1, 1, 1, 3, 3)
    whole = functional.conv3d(x, weight, padding=(0, 1, 1))
    assert output_shape(tuple(x.shape), tuple(weight.shape), (1, 1, 1), (0, 1, 1), (1, 1, 1)) == whole.shape
    for top, left, height, width in ((0, 0, 1, 1), (2, 3, 1, 1), (1, 1, 2, 3), (0, 0, 3, 4)):
        seen = window_of(x, weight, (1, 1, 1), (0, 1, 1), (1, 1, 1), (top, left, height, width))
        part = whole[..., top : top + height, left : left + width]
        assert torch.equal(functional.conv3d(seen, weight), part)

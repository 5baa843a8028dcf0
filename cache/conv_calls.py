"""The conversion of the arguments of torch's 2D and 3D convolutions to the form that the ladder uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor
from torch.nn import functional

from cache.conv_routes import Triple
from cache.conv_rungs import Convolution, FlatConvolution

Sizes = int | Sequence[int]


def understood(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
) -> tuple[Tensor, Convolution] | None:
    """Return the input (B, C, T, H, W) and the convolution for a call with torch's arguments.

    Returns:
        The input and the convolution; those of a 2D call have a single frame. None for a call without a batch
            dimension, or with invalid arguments, for which torch raises an error.
    """
    count = weight.dim() - 2
    steps, spread = _each(stride, count), _each(dilation, count)
    zeros, ends = _zeros(padding, weight.shape[2:], spread)
    is_usual = padding == "valid" or (padding == "same" and set(steps) == {1})
    if (
        count not in (2, 3)
        or input.dim() != count + 2
        or (isinstance(padding, str) and not is_usual)
        or {len(steps), len(spread), len(zeros)} != {count}
    ):
        return None
    x = functional.pad(input, ends) if any(ends) else input
    if count == 3:
        return x, Convolution(
            weight, bias, cast(Triple, steps), cast(Triple, zeros), cast(Triple, spread), groups
        )
    in_frames = [cast(Triple, (first, *rest)) for first, rest in ((1, steps), (0, zeros), (1, spread))]
    return x.unsqueeze(2), FlatConvolution(
        weight.unsqueeze(2), bias, in_frames[0], in_frames[1], in_frames[2], groups
    )


def _each(sizes: Sizes, count: int) -> tuple[int, ...]:
    """Return one size per dimension, given either one size for all of them or a sequence of sizes."""
    several = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return several * count if len(several) == 1 else several


def _zeros(
    padding: Sizes | str, kernel: Sequence[int], dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """Return the padding of both sides per dimension, and the extra padding as `functional.pad` takes it.

    "same" may need one more zero at the end than at the beginning. "valid" needs none.
    """
    if not isinstance(padding, str):
        return _each(padding, len(kernel)), []
    if padding == "valid" or len(dilation) != len(kernel):
        return (0,) * len(kernel), []
    totals = [step * (side - 1) for step, side in zip(dilation, kernel, strict=True)]
    ends = [n for total in reversed(totals) for n in (0, total % 2)]
    return tuple(total // 2 for total in totals), ends

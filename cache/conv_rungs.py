"""The rungs of the ladder: five ways to compute a 3D convolution, four of which can also compute a 2D one.

They differ in the kernels that they call and in the memory that they need. Their results are equal up to the
rounding of the dtype. `conv.ConvLadder` chooses between them.

An input x has the shape (B, C, T, H, W).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from cache.conv_routes import ConvCase

# The most bytes that `taps` and `tiles` unfold at a time. The kernels may unfold these once more.
STEP_BYTES = 128 * 1024**2
_HALVES = (torch.float16, torch.bfloat16)

Sizes = int | Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A 3D convolution with the arguments of `torch.nn.functional.conv3d`, without the input.

    Attributes:
        weight: (O, C / groups, kT, kH, kW).
        bias: (O), or None.
    """

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def __call__(self, x: Tensor) -> Tensor:
        return functional.conv3d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def empty_result(self, x: Tensor) -> Tensor:
        """Return an uninitialised tensor for the result, on the device of `x`."""
        return x.new_empty(output_shape(x.shape, self.weight.shape, self))


class FlatConvolution(Convolution):
    """A 2D convolution of a single frame, with its sizes in the form of a 3D convolution."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return functional.conv2d(
            x.squeeze(2), self.weight.squeeze(2), self.bias,
            self.stride[1:], self.padding[1:], self.dilation[1:], self.groups,
        ).unsqueeze(2)  # fmt: skip


def understood(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> tuple[Tensor, Convolution] | None:  # fmt: skip
    """Return the input (B, C, T, H, W) and the convolution for a call with torch's arguments.

    Returns:
        The input and the convolution; those of a 2D call have a single frame. None for a call without a batch
            dimension, with the padding "same", which no network here has, or with invalid arguments, for
            which torch raises an error.
    """
    count, zeros = weight.dim() - 2, 0 if padding == "valid" else padding
    if count not in (2, 3) or input.dim() != count + 2 or isinstance(zeros, str):
        return None
    steps, zeros, spread = (_each(one, count) for one in (stride, zeros, dilation))
    if {len(steps), len(zeros), len(spread)} != {count}:
        return None
    if count == 3:
        return input, Convolution(weight, bias, steps, zeros, spread, groups)
    return input.unsqueeze(2), FlatConvolution(
        weight.unsqueeze(2), bias, (1, *steps), (0, *zeros), (1, *spread), groups
    )


def _each(sizes: Sizes, count: int) -> tuple[int, ...]:
    """Return one size per dimension, given either one size for all of them or a sequence of sizes."""
    several = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return several * count if len(several) == 1 else several


def miopen(x: Tensor, conv: Convolution) -> Tensor:
    """Make the plain call, which MIOpen computes on ROCm. Elsewhere torch chooses the kernel."""
    return conv(x)


def taps(x: Tensor, conv: Convolution) -> Tensor:
    """Compute a 3D convolution by 2D convolutions, with the kernel's taps in time as further channels.

    The input frames of each output frame become channels of one 2D convolution. This adds up all taps in the
    kernel's own accumulator (fp32 for half precision) and rounds once. The output frames are computed in
    steps of equal size.
    """
    batch, channels = x.shape[:2]
    out_channels, group_channels, taps_in_time, *kernel = conv.weight.shape
    stride, padding, dilation, groups = conv.stride, conv.padding, conv.dilation, conv.groups
    result = conv.empty_result(x)
    flat = conv.weight.transpose(1, 2).reshape(out_channels, taps_in_time * group_channels, *kernel)
    if padding[0]:
        x = functional.pad(x, (0, 0, 0, 0, padding[0], padding[0]))
    frame_bytes = batch * channels * taps_in_time * x.shape[3] * x.shape[4] * x.element_size()
    count = result.shape[2]
    size = _even_size(count, max(1, STEP_BYTES // max(1, frame_bytes)))
    grouped = cast(Tensor, x.unflatten(1, (groups, channels // groups)))
    for begin in _starts(count, size):
        first = begin * stride[0]
        extent = (size - 1) * stride[0] + 1
        views = [
            grouped[:, :, :, first + tap * dilation[0] :][:, :, :, : extent : stride[0]].permute(
                0, 3, 1, 2, 4, 5
            )
            for tap in range(taps_in_time)
        ]
        frames = torch.stack(views, dim=3).reshape(batch * size, channels * taps_in_time, *x.shape[3:])
        done = functional.conv2d(frames, flat, conv.bias, stride[1:], padding[1:], dilation[1:], groups)
        by_frame = cast(Tensor, done.unflatten(0, (batch, size)))
        result[:, :, begin : begin + size] = by_frame.transpose(1, 2)
    return result


def native(x: Tensor, conv: Convolution) -> Tensor:
    """Make the plain call with MIOpen (or cuDNN) disabled, so that torch's own kernel computes it.

    On a GPU this kernel unfolds the input. That takes the input's memory multiplied by the number of the
    convolution's weights per channel. On a CPU this is the plain call.
    """
    with torch.backends.cudnn.flags(enabled=False):
        return conv(x)


def tiles(x: Tensor, conv: Convolution) -> Tensor:
    """Compute one part of the picture after the other with torch's own kernel.

    Each part is computed from its input with the border that it needs. All parts have one size, so that a
    kernel is chosen only once. At the far edges they overlap instead of being smaller.
    """
    result = conv.empty_result(x)
    height, width = _tile_size(result.shape, conv.weight.shape, x.element_size())
    in_time = replace(conv, padding=(conv.padding[0], 0, 0))
    for top in _starts(result.shape[3], height):
        for left in _starts(result.shape[4], width):
            done = native(window_of(x, conv, (top, left, height, width)), in_time)
            result[:, :, :, top : top + height, left : left + width] = done
    return result


def cpu(x: Tensor, conv: Convolution) -> Tensor:
    """Compute on the CPU, in fp32 for half precision, and return the result on the device of `x`."""
    # The result is allocated first, since the long computation would be in vain if it did not fit.
    result = conv.empty_result(x)
    dtype = torch.float32 if x.dtype in _HALVES else x.dtype
    bias = None if conv.bias is None else conv.bias.to("cpu", dtype)
    return result.copy_(replace(conv, weight=conv.weight.to("cpu", dtype), bias=bias)(x.to("cpu", dtype)))


def output_shape(
    shape: tuple[int, ...], weight: tuple[int, ...], how: Convolution | ConvCase
) -> tuple[int, ...]:
    """Return the shape (B, O, T, H, W) of the result, given the shapes of the input and of the weight."""
    sides = (
        (shape[2 + i] + 2 * how.padding[i] - how.dilation[i] * (weight[2 + i] - 1) - 1) // how.stride[i] + 1
        for i in range(3)
    )
    return shape[0], weight[0], *sides


def window_of(x: Tensor, conv: Convolution, box: tuple[int, int, int, int]) -> Tensor:
    """Return the input that a part of the result depends on, with zeros beyond the edge of the picture.

    Args:
        box: The top, left, height and width of the part, in pixels of the result.
    """
    spans: list[slice] = []
    missing: list[int] = []
    for i in (1, 2):
        begin = box[i - 1] * conv.stride[i] - conv.padding[i]
        reach = conv.dilation[i] * (conv.weight.shape[2 + i] - 1)
        end = begin + (box[i + 1] - 1) * conv.stride[i] + reach + 1
        side = x.shape[2 + i]
        span = slice(min(max(begin, 0), side), min(max(end, 0), side))
        spans.append(span)
        short = end - begin - (span.stop - span.start)
        before = min(max(-begin, 0), short)
        missing = [before, short - before, *missing]
    part = x[:, :, :, spans[0], spans[1]]
    return functional.pad(part, missing) if any(missing) else part


def _even_size(count: int, limit: int) -> int:
    """Return the step size that covers `count` in the fewest equal steps of at most `limit`."""
    return math.ceil(count / math.ceil(count / limit)) if count else 0


def _starts(count: int, size: int) -> list[int]:
    """Return the starts of steps of `size` that cover `count`. The last step ends at `count`."""
    return [min(begin, count - size) for begin in range(0, count, size)] if size else []


def _tile_size(result: tuple[int, ...], weight: tuple[int, ...], item_bytes: int) -> tuple[int, int]:
    """Return the height and width of the parts in which `tiles` computes the result.

    A part is at most half of the picture, and takes at most `STEP_BYTES` when it is unfolded.
    """
    frames, height, width = result[2:]
    pixel_bytes = math.prod(weight[1:]) * frames * item_bytes
    rows = columns = 1
    while True:
        # The longer side is divided, since squares have the shortest borders, which are computed twice.
        if height / rows >= width / columns:
            rows *= 2
        else:
            columns *= 2
        size = _even_size(height, max(1, height // rows)), _even_size(width, max(1, width // columns))
        if size == (1, 1) or size[0] * size[1] * pixel_bytes <= STEP_BYTES:
            return size


def _has_frames(case: ConvCase) -> bool:
    # Other numbers have no 2D convolution on a GPU.
    return not case.is_flat and "float" in case.dtype


def _has_two_pixels(case: ConvCase) -> bool:
    return math.prod(output_shape(case.shape, case.weight, case)[3:]) > 1


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to compute a convolution.

    Attributes:
        name: The name in settings, logs and files.
        supports: A function that returns whether the rung can compute a case.
    """

    name: str
    run: Callable[[Tensor, Convolution], Tensor]
    supports: Callable[[ConvCase], bool] = lambda case: True


RUNGS: dict[str, Rung] = {
    rung.name: rung
    for rung in (
        Rung("miopen", miopen),
        Rung("taps", taps, _has_frames),
        Rung("native", native),
        Rung("tiles", tiles, _has_two_pixels),
        Rung("cpu", cpu),
    )
}
# These rungs work in steps and need little more memory than the result. They are tried after a lack of
# memory.
SMALLER_RUNGS = ("taps", "tiles", "cpu")

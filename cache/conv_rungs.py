"""The rungs of the ladder: seven ways to compute a 3D convolution, most of which compute a 2D one, too.

They differ in their kernels and in the memory that they need. Their results are equal up to the rounding of
the dtype. An input x has the shape (B, C, T, H, W).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from cache.kitchen import backend_of, is_refused, kitchen
from diffusers_helper.machine.routes import CONVOLUTION

# The most bytes that `taps` and `tiles` unfold at a time. The kernels may unfold these once more.
STEP_BYTES = 128 * 1024**2
_HALVES = (torch.float16, torch.bfloat16)

PLAIN = "miopen"  # the rung that is torch's own call
KITCHEN_CARDS, KITCHEN_TYPES = ("gfx110", "gfx115", "gfx120"), ("float16",)

Sizes = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class ConvCase:
    """A convolution on a card, with everything that the choice of a rung may depend on.

    The input is (B, C, T, H, W) and the weight (O, C / groups, kT, kH, kW). A flat one has a single frame.
    """

    arch: str
    rocm: str
    torch: str
    dtype: str
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_flat: bool = False

    def __str__(self) -> str:
        """Write the case as one line, which is its key in the store."""
        sizes = (self.shape, self.weight, self.stride, self.padding, self.dilation)
        names = ("x", "w", "stride", "pad", "dilation")
        pairs = zip(names, sizes, strict=True)
        shapes = " ".join(f"{name}={'x'.join(map(str, size))}" for name, size in pairs)
        return f"{self.software} {self.dtype} {shapes} groups={self.groups}{' conv2d' * self.is_flat}"

    @property
    def software(self) -> str:
        return f"{self.arch} rocm={self.rocm} torch={self.torch}"

    @property
    def operation(self) -> str:
        return CONVOLUTION

    @property
    def table(self) -> str:
        return self.arch

    @property
    def multiplications(self) -> int:
        kernel = math.prod(self.weight[2:]) * self.weight[0]
        return math.prod(self.shape) * kernel // math.prod(self.stride)


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A 3D convolution: weight (O, C / groups, kT, kH, kW), bias (O) or None, and torch's other arguments."""

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
        return x.new_empty(output_shape(x.shape, self.weight.shape, self))


class FlatConvolution(Convolution):
    """A 2D convolution of a single frame, with its sizes in the form of a 3D convolution."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return functional.conv2d(
            x.squeeze(2), self.weight.squeeze(2), self.bias,
            self.stride[1:], self.padding[1:], self.dilation[1:], self.groups,
        ).unsqueeze(2)  # fmt: skip


def parse_call(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> tuple[Tensor, Convolution] | None:  # fmt: skip
    """Bring a call with torch's arguments into the form (B, C, T, H, W); a 2D call gets a single frame.

    None stands for a call without a batch dimension, with the padding "same", which no network here has, or
    with invalid arguments, for which torch raises an error.
    """
    num_dims = weight.dim() - 2
    paddings = 0 if padding == "valid" else padding
    if num_dims not in (2, 3) or input.dim() != num_dims + 2 or isinstance(paddings, str):
        return None
    strides, paddings, dilations = (_expand(sizes, num_dims) for sizes in (stride, paddings, dilation))
    if {len(strides), len(paddings), len(dilations)} != {num_dims}:
        return None
    if num_dims == 3:
        return input, Convolution(weight, bias, strides, paddings, dilations, groups)
    return input.unsqueeze(2), FlatConvolution(
        weight.unsqueeze(2), bias, (1, *strides), (0, *paddings), (1, *dilations), groups
    )


def _expand(sizes: Sizes, count: int) -> tuple[int, ...]:
    expanded = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return expanded * count if len(expanded) == 1 else expanded


def kitchen_conv(x: Tensor, conv: Convolution) -> Tensor:
    """Compute in fp16 with comfy-kitchen's kernel, which needs no MIOpen and pads nothing itself."""
    pad = [size for side in reversed(conv.padding) for size in (side, side)]
    padded = functional.pad(x, pad) if any(pad) else x
    arguments = {
        "x": padded,
        "weight": conv.weight,
        "bias": conv.bias,
        "residual": None,
        "stride": [*conv.stride],
    }
    try:
        backend = backend_of("fp16_conv3d", arguments)
        result: Tensor | None = kitchen().fp16_conv3d(**arguments) if backend else None
    except Exception as error:
        raise RuntimeError(f"comfy-kitchen: {error}") from error
    if result is None or (backend == "eager" and x.is_cuda):
        raise RuntimeError("comfy-kitchen has no compiled kernel here")
    if not bool(result.isfinite().all()) and bool(x.isfinite().all()):
        raise RuntimeError("comfy-kitchen gave values that are not finite")
    return result


def miopen(x: Tensor, conv: Convolution) -> Tensor:
    """Make the plain call, which MIOpen computes on ROCm. Elsewhere torch chooses the kernel."""
    return conv(x)


def channels_last(x: Tensor, conv: Convolution) -> Tensor:
    """Make the plain call with the channels of a value side by side, as tensor cores read them.

    The result keeps that layout, so that the next call need not copy it.
    """
    weight, padded = (tensor.contiguous(memory_format=torch.channels_last_3d) for tensor in (conv.weight, x))
    return replace(conv, weight=weight)(padded)


def taps(x: Tensor, conv: Convolution) -> Tensor:
    """Compute a 3D convolution by 2D convolutions, with the kernel's taps in time as further channels.

    The 2D kernel adds up all taps in its own accumulator (fp32 for half precision) and rounds once. The
    output frames are computed in steps of equal size.
    """
    batch, channels = x.shape[:2]
    out_channels, group_channels, num_taps, *kernel = conv.weight.shape
    stride, padding, dilation, groups = conv.stride, conv.padding, conv.dilation, conv.groups
    result = conv.empty_result(x)
    weight = conv.weight.transpose(1, 2).reshape(out_channels, num_taps * group_channels, *kernel)
    if padding[0]:
        x = functional.pad(x, (0, 0, 0, 0, padding[0], padding[0]))
    frame_bytes = batch * channels * num_taps * x.shape[3] * x.shape[4] * x.element_size()
    num_frames = result.shape[2]
    step_size = _even_size(num_frames, max(1, STEP_BYTES // max(1, frame_bytes)))
    grouped = cast(Tensor, x.unflatten(1, (groups, channels // groups)))
    for start in _starts(num_frames, step_size):
        input_start = start * stride[0]
        extent = (step_size - 1) * stride[0] + 1
        views = [
            grouped[:, :, :, input_start + tap * dilation[0] :][:, :, :, : extent : stride[0]].permute(
                0, 3, 1, 2, 4, 5
            )
            for tap in range(num_taps)
        ]
        frames = torch.stack(views, dim=3).reshape(batch * step_size, channels * num_taps, *x.shape[3:])
        output = functional.conv2d(frames, weight, conv.bias, stride[1:], padding[1:], dilation[1:], groups)
        by_frame = cast(Tensor, output.unflatten(0, (batch, step_size)))
        result[:, :, start : start + step_size] = by_frame.transpose(1, 2)
    return result


def native(x: Tensor, conv: Convolution) -> Tensor:
    """Make the plain call without MIOpen or cuDNN; torch's own kernel unfolds the input on a GPU."""
    with torch.backends.cudnn.flags(enabled=False):
        return conv(x)


def tiles(x: Tensor, conv: Convolution) -> Tensor:
    """Compute one part of the picture after the other, of one size, with torch's own kernel."""
    result = conv.empty_result(x)
    height, width = _tile_size(result.shape, conv.weight.shape, x.element_size())
    unpadded_conv = replace(conv, padding=(conv.padding[0], 0, 0))
    for top in _starts(result.shape[3], height):
        for left in _starts(result.shape[4], width):
            part = native(input_of(x, conv, (top, left, height, width)), unpadded_conv)
            result[:, :, :, top : top + height, left : left + width] = part
    return result


def cpu(x: Tensor, conv: Convolution) -> Tensor:
    """Compute on the CPU, in fp32 for half precision, and return the result on the device of `x`."""
    # The result is allocated first, since the long computation would be in vain if it did not fit.
    result = conv.empty_result(x)
    dtype = torch.float32 if x.dtype in _HALVES else x.dtype
    bias = None if conv.bias is None else conv.bias.to("cpu", dtype)
    return result.copy_(replace(conv, weight=conv.weight.to("cpu", dtype), bias=bias)(x.to("cpu", dtype)))


def output_shape(
    shape: tuple[int, ...], weight: tuple[int, ...], conv: Convolution | ConvCase
) -> tuple[int, ...]:
    sides = (
        (shape[2 + i] + 2 * conv.padding[i] - conv.dilation[i] * (weight[2 + i] - 1) - 1) // conv.stride[i]
        + 1
        for i in range(3)
    )
    return shape[0], weight[0], *sides


def input_of(x: Tensor, conv: Convolution, box: tuple[int, int, int, int]) -> Tensor:
    """Cut out the input for a box (top, left, height, width) of the result. Beyond the edge it is zero."""
    slices: list[slice] = []
    pad: list[int] = []
    for i in (1, 2):
        start = box[i - 1] * conv.stride[i] - conv.padding[i]
        kernel_reach = conv.dilation[i] * (conv.weight.shape[2 + i] - 1)
        end = start + (box[i + 1] - 1) * conv.stride[i] + kernel_reach + 1
        side = x.shape[2 + i]
        span = slice(min(max(start, 0), side), min(max(end, 0), side))
        slices.append(span)
        num_missing = end - start - (span.stop - span.start)
        num_before = min(max(-start, 0), num_missing)
        pad = [num_before, num_missing - num_before, *pad]
    part = x[:, :, :, slices[0], slices[1]]
    return functional.pad(part, pad) if any(pad) else part


def _even_size(count: int, limit: int) -> int:
    return math.ceil(count / math.ceil(count / limit)) if count else 0


def _starts(count: int, size: int) -> list[int]:
    return [min(start, count - size) for start in range(0, count, size)] if size else []


def _tile_size(result: tuple[int, ...], weight: tuple[int, ...], item_bytes: int) -> tuple[int, int]:
    """Choose tiles of at most half of the picture that take at most `STEP_BYTES` when they are unfolded."""
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


def _suits_kitchen(case: ConvCase) -> bool:
    """Tell whether the kernel for the matrix cores of RDNA3, 3.5 and 4 takes a case; others go to torch."""
    channels = case.weight[:2]
    return (
        case.arch.startswith(KITCHEN_CARDS)
        and case.dtype in KITCHEN_TYPES
        and case.groups == 1
        and set(case.dilation) == {1}
        and channels[0] % 8 == 0
        and (channels[1] % 8 == 0 or channels[1] < 8)
        and not is_refused()
    )


def _is_nvidia(case: ConvCase) -> bool:
    return case.arch.startswith("sm_") and not case.is_flat


def _has_frames(case: ConvCase) -> bool:
    # Other numbers have no 2D convolution on a GPU.
    return not case.is_flat and "float" in case.dtype


def _has_two_pixels(case: ConvCase) -> bool:
    return math.prod(output_shape(case.shape, case.weight, case)[3:]) > 1


@dataclass(frozen=True, slots=True)
class Rung:
    name: str
    run: Callable[[Tensor, Convolution], Tensor]
    supports: Callable[[ConvCase], bool] = lambda case: True


RUNGS: dict[str, Rung] = {
    rung.name: rung
    for rung in (
        Rung("kitchen", kitchen_conv, _suits_kitchen),
        Rung(PLAIN, miopen),
        Rung("channels", channels_last, _is_nvidia),
        Rung("taps", taps, _has_frames),
        Rung("native", native),
        Rung("tiles", tiles, _has_two_pixels),
        Rung("cpu", cpu),
    )
}
# These rungs are never the plain way, and are left out by a person who wants nothing else.
CHOSEN_RUNGS = ("kitchen", "channels")
# These rungs work in steps and need little more memory than the result. They are tried when it runs out.
SMALLER_RUNGS = ("taps", "tiles", "cpu")

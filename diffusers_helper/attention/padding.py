"""What stands before the convolutions of HunyuanVideo's VAE: norms, SiLU and repeated edges, in one copy."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

# In channels-last tensors, torch's sums in fp32 for a norm lose precision with the number of values.
_MAX_VALUES = 2**21


class PaddedNorm(nn.GroupNorm):
    """A norm with SiLU and the edges that the next convolution needs."""

    def forward(self, input: Tensor) -> Tensor:
        return pad_edges(super().forward(input), 2, with_silu=True)


def pad_edges(states: Tensor, num_before: int, with_silu: bool = False) -> Tensor:
    """Repeat the edges of states: the first frame before them, and one value on all sides."""
    batch, channels, frames, height, width = states.shape
    result = empty_states((batch, channels, frames + num_before, height + 2, width + 2), states)
    inner = result[:, :, num_before:]
    middle = inner[..., 1:-1, 1:-1]
    if with_silu:
        torch.ops.aten.silu.out(states, out=middle)
    else:
        middle.copy_(states)
    repeat_edges(result, num_before)
    return result


def repeat_edges(padded: Tensor, num_before: int) -> None:
    """Fill the first frames of padded states, and one value on all sides, with the values next to them."""
    height, width = (side - 2 for side in padded.shape[3:])
    inner = padded[:, :, num_before:]
    # Both columns are copied at a time, then both rows.
    inner[..., 1:-1, :: width + 1].copy_(inner[..., 1:-1, 1 : -1 : max(1, width - 1)])
    inner[..., :: height + 1, :].copy_(inner[..., 1 : -1 : max(1, height - 1), :])
    padded[:, :, :num_before].copy_(inner[:, :, :1])


def empty_states(shape: Sequence[int], like: Tensor) -> Tensor:
    is_quick = like.dtype is torch.bfloat16 and like.is_cpu and math.prod(shape[2:]) <= _MAX_VALUES
    layout = torch.channels_last_3d if is_quick else torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)

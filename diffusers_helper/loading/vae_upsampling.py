"""The enlargement in HunyuanVideo's VAE, whose convolution sees each value up to eight times.

A convolution of 3x3x3 over values that were doubled along each side needs only 2x2x2 of the values before:
the weights that meet the same value are added up beforehand, separately for each of the eight places in a
doubled value. That is 64 products instead of 216 for each value, and no enlarged copy. A decoded video
differs from diffusers' by rounding alone: by 150 dB in fp32 and 74 dB in bf16 with the demo model.
"""

from __future__ import annotations

from itertools import product

import torch
from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoUpsampleCausal3D
from torch import Tensor, nn
from torch.nn import functional

# For each place in a doubled value, the sums of the three weights that meet the two nearest values. Along
# time the convolution is causal, and the first frame is not doubled: each frame but the first gives two, of
# which the first sees the frame before in two of its three weights.
_SAME = (((1, 0, 0), (0, 1, 0), (0, 0, 1)),)
_IN_SPACE = (((1, 0, 0), (0, 1, 1)), ((1, 1, 0), (0, 0, 1)))
_IN_TIME = (((1, 1, 0), (0, 0, 1)), ((1, 0, 0), (0, 1, 1)))
_AXES = (_IN_TIME, _IN_SPACE, _IN_SPACE)
_AT_ONCE = 16  # the output channels that are added up at once, in fp32


class FoldedUpsample(nn.Module):
    """`HunyuanVideoUpsampleCausal3D` with one smaller convolution, which has the same weights and names."""

    def __init__(self, plain: HunyuanVideoUpsampleCausal3D) -> None:
        super().__init__()
        self.conv = plain.conv
        self._factors = tuple(int(factor) for factor in plain.upsample_factor)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Enlarge states (B, C, T, H, W) to (B, C', 2 T - 1, 2 H, 2 W), or as the factors say."""
        conv, (times, highs, wides) = self.conv.conv, self._factors
        weight = _folded(conv.weight, self._factors)
        bias = None if conv.bias is None else conv.bias.repeat(times * highs * wides)
        batch, _, frames, height, width = hidden_states.shape
        before = weight.shape[2] - 1
        padded = functional.pad(hidden_states, (1, 1, 1, 1, before, 0), mode="replicate")
        # The fallback for convolutions is installed in this method, which takes the weights.
        parts = conv._conv_forward(padded, weight, bias).unflatten(1, (times, highs, wides, -1))
        num_frames = times * (frames - 1) + 1
        result = parts.new_empty(batch, parts.shape[4], num_frames, highs * height, wides * width)
        for t, y, x in product(range(times), range(highs), range(wides)):
            late = times - 1 - t  # the first window begins before the first frame, and has no first half
            part = parts[:, t, y, x, :, late:, y : y + height, x : x + width]
            result[:, :, late::times, y::highs, x::wides] = part
        return result


def quicken(vae: nn.Module) -> None:
    """Let a VAE that no other program shares compute the same with fewer operations."""
    for name, layer in list(vae.named_modules()):
        if isinstance(layer, nn.SiLU):  # it follows a norm, whose result nothing else needs
            layer.inplace = True
        elif isinstance(layer, HunyuanVideoUpsampleCausal3D):
            vae.set_submodule(name, FoldedUpsample(layer))


def _folded(weight: Tensor, factors: tuple[int, ...]) -> Tensor:
    """Return the weights (P C', C, kernel) of the P places in a doubled value, from (C', C, 3, 3, 3)."""
    axes = [own if factor == 2 else _SAME for factor, own in zip(factors, _AXES, strict=True)]
    sums = [torch.tensor(axis, dtype=torch.float32, device=weight.device) for axis in axes]
    kernel = [len(axis[0]) for axis in axes]
    result = weight.new_empty(*factors, *weight.shape[:2], *kernel)
    for begin in range(0, len(weight), _AT_ONCE):
        rows = slice(begin, begin + _AT_ONCE)
        result[:, :, :, rows] = torch.einsum("oixyz,tax,uby,vcz->tuvoiabc", weight[rows].float(), *sums)
    return result.flatten(0, 3)

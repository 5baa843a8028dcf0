"""The colours of a clip, which decoding and encoding shift a little at each joint."""

import torch
from torch import Tensor

_MIN_DEVIATION = 1e-3  # of a flat picture, whose contrast says nothing


def with_colours(frames: Tensor, originals: Tensor, end: Tensor | None = None) -> Tensor:
    """Give frames (T, H, W, 3) the colours of those that their first ones repeat.

    These get the mean and the deviation that the originals have in each channel, and so do all others. With
    `end`, the last frame gets those of `end` instead, and the frames between change linearly.
    """
    gain, shift = _change(frames[: len(originals)], originals)
    if end is not None:
        end_gain, end_shift = _change(frames[-1:], end)
        share = torch.linspace(0, 1, len(frames)).view(-1, 1, 1, 1)
        gain, shift = torch.lerp(gain, end_gain, share), torch.lerp(shift, end_shift, share)
    return (frames * gain + shift).clamp(-1, 1)


def _change(frames: Tensor, originals: Tensor) -> tuple[Tensor, Tensor]:
    mean, original_mean = frames.mean(dim=(0, 1, 2)), originals.mean(dim=(0, 1, 2))
    deviation, original_deviation = (
        pixels.std(dim=(0, 1, 2)) + _MIN_DEVIATION for pixels in (frames, originals)
    )
    gain = original_deviation / deviation
    return gain, original_mean - gain * mean

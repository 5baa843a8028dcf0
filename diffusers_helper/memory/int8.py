"""Weights in int8 with a scale for each row, made from wider ones a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_MOST = 127
_PIECE_VALUES = 2**20  # a piece in fp32 stays in the processor's cache
_SMALLEST = torch.finfo(torch.float32).tiny  # the scale of a row of zeros


def row_scales(weight: Tensor) -> Tensor:
    """Return the scales in fp32, of shape (rows, 1), by which int8 spans the largest value of each row."""
    with torch.inference_mode(False):  # as the buffer of a layer, they outlive the job
        most = [piece.to(torch.float32).abs().amax(1, keepdim=True) for piece in _pieces(weight)]
        return torch.cat(most).div_(_MOST).clamp_(min=_SMALLEST)


def to_int8(weight: Tensor, scales: Tensor, target: Tensor) -> None:
    """Write a weight, divided by the scales of its rows and rounded, to an int8 tensor on any device."""
    for piece, scale, place in zip(_pieces(weight), _pieces(scales, weight), _pieces(target), strict=True):
        place.copy_((piece.to(torch.float32) / scale).round_().to(torch.int8))


def _pieces(tensor: Tensor, like: Tensor | None = None) -> Iterator[Tensor]:
    """Yield groups of rows, of about `_PIECE_VALUES` values in `like` or else in the tensor itself."""
    width = (tensor if like is None else like).shape[1]
    yield from tensor.split(max(1, _PIECE_VALUES // max(1, width)))

"""The sources of randomness. Each purpose has its own, so any part of a video can be made again alone."""

from __future__ import annotations

import hashlib
from typing import Literal

import torch
from torch import Tensor

Purpose = Literal["start_latent", "noise", "tail"]


def noise_for(seed: int, purpose: Purpose, section: int, shape: tuple[int, ...]) -> Tensor:
    """Return normally distributed noise that depends only on the arguments.

    It is drawn in fp32 on the CPU, so every machine draws the same. `section` is 0 for noise that belongs to
    no section.
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{section}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big"))
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

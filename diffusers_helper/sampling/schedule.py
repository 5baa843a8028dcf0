"""The noise of a run: its levels, which are flow-matching sigmas shifted by the token count, and its sources.

Each purpose has a source of its own, so any part of a video can be made again alone.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

# mu grows linearly with the number of tokens (Flux's rule and constants) up to a shift of 7 (FramePack).
_FEW_TOKENS, _FEW_MU = 256, 0.5
_MANY_TOKENS, _MANY_MU = 4096, 1.15
MAX_SHIFT = 7.0
Purpose = Literal["start_latent", "noise", "tail", "still", "first", "blur", "levels", "stage", "step"]


def tokens_of(shape: Sequence[int]) -> int:
    """Count the tokens of latents (1, C, W, h, w), which are patches of 2x2."""
    frames, height, width = shape[2:]
    return frames * (height // 2) * (width // 2)


def shift_of(num_tokens: int) -> float:
    """Compute the shift e^mu for the noisy tokens of one section (latent T * H * W / 4).

    From 8798 tokens on, and so at every shape of side 640, it is exactly 7.
    """
    return min(MAX_SHIFT, math.exp(min(mu_of(num_tokens), MAX_SHIFT)))


def mu_of(num_tokens: int) -> float:
    slope = (_MANY_MU - _FEW_MU) / (_MANY_TOKENS - _FEW_TOKENS)
    return _FEW_MU + slope * (num_tokens - _FEW_TOKENS)


def flow_sigmas(steps: int, shift: float) -> Tensor:
    """Compute the noise levels s t / (1 + (s - 1) t) at t = 1 - i / steps, in float64, from 1 to 0."""
    # This form of the formula gives both ends exactly.
    signal = torch.arange(steps + 1, dtype=torch.float64)
    noise = shift * (steps - signal)
    return noise / (noise + signal)


def noise_for(seed: int, purpose: Purpose, section: int, shape: tuple[int, ...]) -> Tensor:
    """Draw normally distributed noise, in fp32 on the CPU, by these alone; `section` 0 is for no section."""
    generator = _generator(seed, purpose, section)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def uniform_for(seed: int, purpose: Purpose, section: int, count: int) -> Tensor:
    """Draw `count` numbers that are uniformly distributed from 0 to 1, as `noise_for` draws noise."""
    return torch.rand(count, generator=_generator(seed, purpose, section), dtype=torch.float32, device="cpu")


def _generator(seed: int, purpose: Purpose, section: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{purpose}/{section}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big"))

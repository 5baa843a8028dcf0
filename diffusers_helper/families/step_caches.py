"""The step caches by name: when each of them skips a denoising step, and what it keeps for that.

Neighbouring steps compute nearly the same, so a step may take a result of earlier steps instead of running
the network's blocks. A further cache needs only an entry in `STEP_CACHES`, if it measures and reuses what one
of the others does; `sampling.step_cache` executes them. A rule decides for one pass of guidance in one
section. The first and the last step are always computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, floor
from typing import Literal

# What a rule is given the relative change of, compared with the step named in brackets.
Signal = Literal[
    "",  # nothing
    "modulated",  # the first block's modulated input (the step before)
    "first block",  # what the first block adds to its input (the last computed step)
    "output",  # the network's output, predicted from the change of its input (the last computed step)
]
# What replaces a skipped computation.
Reuse = Literal[
    "blocks",  # what the blocks added to their input in the last computed step
    "offset",  # the difference of the network's output and input in that step
    "line",  # the line through the network's outputs in the last two computed steps
]
# Returns whether a step is skipped, given its index from 0 and the relative change of the signal.
Rule = Callable[[int, float], bool]


@dataclass(frozen=True, slots=True)
class StepCache:
    """A way to skip steps. A rule depends on the number of steps and the model's mag_ratios."""

    label: str
    reuse: Reuse
    rule: Callable[[int, Sequence[float]], Rule]
    signal: Signal = ""

    def state_bytes(
        self, tokens: int, noisy_tokens: int, channels: int, value_bytes: int, latent_bytes: int
    ) -> int:
        """Compute what a pass keeps. `noisy_tokens` and `latent_bytes` are of the noisy section, in fp32."""
        if self.reuse != "blocks":  # both keep two tensors, and a third one passes through
            return 3 * latent_bytes
        return (noisy_tokens + (tokens if self.signal else 0)) * channels * value_bytes


# TeaCache's polynomial for HunyuanVideo, with the highest power first (lllyasviel/FramePack,
# hunyuan_video_packed.py). It is above 0.051 for any change, so a threshold sets how many steps in a row may
# be skipped: none below 0.052, one at 0.1, two at 0.15. Other values than these two make no difference.
_TEACACHE = (733.226126, -401.131952, 67.5869174, -3.149878, 0.0961237896)


def _teacache(threshold: float) -> Callable[[int, Sequence[float]], Rule]:
    def make(steps: int, mag_ratios: Sequence[float]) -> Rule:
        is_below = _sum_below(threshold)
        return lambda step, change: is_below(
            reduce(lambda value, factor: value * change + factor, _TEACACHE, 0.0)
        )

    return make


def _sum_below(limit: float) -> Callable[[float], bool]:
    """Make a function that tells whether changes add up to less than a limit, where it starts again."""
    total = 0.0

    def is_within(change: float) -> bool:
        nonlocal total
        total += change
        is_below = total < limit
        total = total if is_below else 0.0
        return is_below

    return is_within


# The authors' settings for FramePack (Zehong-Ma/MagCache, MagCache4FramePack): the greatest error, the most
# steps in a row, and the share of the steps that are computed at the beginning.
_MAGCACHE_ERROR, _MAGCACHE_IN_A_ROW, _MAGCACHE_BEGINNING = 0.1, 3, 0.2
# A step whose own ratio differs by more is computed; diffusers' hook lacks this clause.
_MAGCACHE_STEP = 0.06


def _magcache(steps: int, mag_ratios: Sequence[float]) -> Rule:
    ratios = nearest_interp(mag_ratios, steps)
    product, error, num_skipped = 1.0, 0.0, 0

    def skips(step: int, change: float) -> bool:
        nonlocal product, error, num_skipped
        if step < int(_MAGCACHE_BEGINNING * steps):
            return False
        product *= ratios[step]
        error += abs(1 - product)
        num_skipped += 1
        is_close = error <= _MAGCACHE_ERROR and abs(1 - ratios[step]) <= _MAGCACHE_STEP
        if is_close and num_skipped <= _MAGCACHE_IN_A_ROW:
            return True
        product, error, num_skipped = 1.0, 0.0, 0
        return False

    return skips


def nearest_interp(mag_ratios: Sequence[float], steps: int) -> list[float]:
    """Adapt measured mag_ratios to another number of steps: each step takes those of the nearest one.

    A ratio is that of the norms of what the blocks add in a step and in the step before, as the mean over the
    tokens.
    """
    scale = (len(mag_ratios) - 1) / max(1, steps - 1)
    return [mag_ratios[floor(step * scale + 0.5)] for step in range(steps)]


_FIRST_BLOCK_CHANGE = 0.05  # the default of diffusers' FirstBlockCache


def _first_block(steps: int, mag_ratios: Sequence[float]) -> Rule:
    return lambda step, change: change <= _FIRST_BLOCK_CHANGE


# diffusers' defaults for TaylorSeer: the first steps are computed, then every fifth.
_TAYLOR_BEGINNING, _TAYLOR_INTERVAL = 3, 5


def _taylorseer(steps: int, mag_ratios: Sequence[float]) -> Rule:
    return lambda step, change: (
        step >= _TAYLOR_BEGINNING and (step - _TAYLOR_BEGINNING - 1) % _TAYLOR_INTERVAL != 0
    )


# The defaults of ComfyUI's node: the change at which a step is computed, and the shares of the steps that are
# computed at the beginning and at the end.
_EASYCACHE_CHANGE, _EASYCACHE_BEGINNING, _EASYCACHE_END = 0.2, 0.15, 0.05


def _easycache(steps: int, mag_ratios: Sequence[float]) -> Rule:
    start, end = ceil(_EASYCACHE_BEGINNING * steps), floor((1 - _EASYCACHE_END) * steps)
    is_below = _sum_below(_EASYCACHE_CHANGE)
    return lambda step, change: start <= step < end and is_below(change)


OFF = "off"
STEP_CACHES: dict[str, StepCache] = {
    "teacache-gentle": StepCache("TeaCache, gentle", "blocks", _teacache(0.1), "modulated"),
    "teacache": StepCache("TeaCache", "blocks", _teacache(0.15), "modulated"),
    "magcache": StepCache("MagCache", "blocks", _magcache),
    "first-block": StepCache("FirstBlockCache", "blocks", _first_block, "first block"),
    "taylorseer": StepCache("TaylorSeer", "line", _taylorseer),
    "easycache": StepCache("EasyCache", "offset", _easycache, "output"),
}
STEP_CACHE_LABELS = {OFF: "Off", **{name: cache.label for name, cache in STEP_CACHES.items()}}

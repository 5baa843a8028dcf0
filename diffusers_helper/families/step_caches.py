"""The step caches by name: when each of them skips a denoising step, and what it keeps for that.

Neighbouring steps compute nearly the same, so a step may take a result of earlier steps instead of running
the network's blocks. A further cache needs only an entry in `STEP_CACHES`, if it measures and reuses what one
of the others does; `sampling.step_cache` executes them, for any family of models.

A rule decides for one pass of guidance in one section, with integers and floats only. The first and the last
step are always computed, and no rule is asked about them.
"""

from __future__ import annotations

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
    "output",  # the network's output, foretold from the change of its input (the last computed step)
]
# What takes the place of a skipped computation.
Reuse = Literal[
    "blocks",  # what the blocks added to their input in the last computed step
    "offset",  # the difference of the network's output and input in that step
    "line",  # the line through the network's outputs in the last two computed steps
]
# Returns whether a step is skipped, given its index from 0 and the relative change of the signal.
Rule = Callable[[int, float], bool]


@dataclass(frozen=True, slots=True)
class StepCache:
    """A way to skip steps. A rule depends on the number of steps and the model's magnitudes (`nearest`)."""

    label: str
    reuse: Reuse
    rule: Callable[[int, Sequence[float]], Rule]
    signal: Signal = ""

    def state_bytes(self, tokens: int, noisy: int, width: int, size: int, latent_bytes: int) -> int:
        """Return the bytes that one pass of guidance keeps from step to step.

        Args:
            noisy: The number of tokens of the noisy window alone.
            latent_bytes: The bytes of the noisy window's latents in fp32.
        """
        if self.reuse != "blocks":  # both keep two tensors, and a third one passes through
            return 3 * latent_bytes
        return (noisy + (tokens if self.signal else 0)) * width * size


# TeaCache's polynomial for HunyuanVideo, with the highest power first (lllyasviel/FramePack,
# hunyuan_video_packed.py). It is above 0.051 for any change, so a threshold sets how many steps in a row may
# be skipped: none below 0.052, one at 0.1, two at 0.15. Other values than these two make no difference.
_TEACACHE = (733.226126, -401.131952, 67.5869174, -3.149878, 0.0961237896)


def _teacache(threshold: float) -> Callable[[int, Sequence[float]], Rule]:
    def make(steps: int, magnitudes: Sequence[float]) -> Rule:
        is_close = _within(threshold)
        return lambda step, change: is_close(reduce(lambda sum, one: sum * change + one, _TEACACHE, 0.0))

    return make


def _within(limit: float) -> Callable[[float], bool]:
    """Return a function that says whether the changes it is given stay below a limit when they are added up.

    It begins again after the limit was reached.
    """
    so_far = 0.0

    def is_close(change: float) -> bool:
        nonlocal so_far
        so_far += change
        is_below = so_far < limit
        so_far = so_far if is_below else 0.0
        return is_below

    return is_close


# The authors' settings for FramePack (Zehong-Ma/MagCache, MagCache4FramePack): the greatest error, the most
# steps in a row, and the share of the steps that are computed at the beginning.
_MAGCACHE_ERROR, _MAGCACHE_IN_A_ROW, _MAGCACHE_BEGINNING = 0.1, 3, 0.2
# A step whose own magnitude differs by more is computed; diffusers' hook lacks this clause.
_MAGCACHE_STEP = 0.06


def _magcache(steps: int, magnitudes: Sequence[float]) -> Rule:
    ratios = nearest(magnitudes, steps)
    magnitude, error, in_a_row = 1.0, 0.0, 0

    def skips(step: int, change: float) -> bool:
        nonlocal magnitude, error, in_a_row
        if step < int(_MAGCACHE_BEGINNING * steps):
            return False
        magnitude *= ratios[step]
        error += abs(1 - magnitude)
        in_a_row += 1
        is_close = error <= _MAGCACHE_ERROR and abs(1 - ratios[step]) <= _MAGCACHE_STEP
        if is_close and in_a_row <= _MAGCACHE_IN_A_ROW:
            return True
        magnitude, error, in_a_row = 1.0, 0.0, 0
        return False

    return skips


def nearest(magnitudes: Sequence[float], steps: int) -> list[float]:
    """Return the magnitudes for another number of steps: for each step, those of the nearest measured one.

    A magnitude is the mean ratio, over the tokens, of the norms of what the blocks add in a step and in the
    step before.
    """
    scale = (len(magnitudes) - 1) / max(1, steps - 1)
    return [magnitudes[floor(step * scale + 0.5)] for step in range(steps)]


_FIRST_BLOCK_CHANGE = 0.05  # the default of diffusers' FirstBlockCache


def _first_block(steps: int, magnitudes: Sequence[float]) -> Rule:
    return lambda step, change: change <= _FIRST_BLOCK_CHANGE


# diffusers' defaults for TaylorSeer: the first steps are computed, then every fifth.
_TAYLOR_BEGINNING, _TAYLOR_INTERVAL = 3, 5


def _taylorseer(steps: int, magnitudes: Sequence[float]) -> Rule:
    return lambda step, change: (
        step >= _TAYLOR_BEGINNING and (step - _TAYLOR_BEGINNING - 1) % _TAYLOR_INTERVAL != 0
    )


# The defaults of ComfyUI's node: the change at which a step is computed, and the shares of the steps that are
# computed at the beginning and at the end.
_EASYCACHE_CHANGE, _EASYCACHE_BEGINNING, _EASYCACHE_END = 0.2, 0.15, 0.05


def _easycache(steps: int, magnitudes: Sequence[float]) -> Rule:
    begin, end = ceil(_EASYCACHE_BEGINNING * steps), floor((1 - _EASYCACHE_END) * steps)
    is_close = _within(_EASYCACHE_CHANGE)
    return lambda step, change: begin <= step < end and is_close(change)


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

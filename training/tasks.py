"""The tasks of the transformer's training: everything random in a step except the noise.

A task follows from the seed and the step's number. On a GPU, which draws the pixels, other processes prepare
the tasks of the next steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from diffusers_helper.families.family import buckets
from diffusers_helper.families.packing import LATENT_WINDOW_SIZE
from training.clips import ClipBatch, Size, draw_batch
from training.transformer import SectionTimes, draw_frames, draw_section, times_of

SIDE = 128
CANVASES = 24
# The share of later sections that continue what the model itself has made.
OWN_HISTORY = 0.5
TASKS_AHEAD = 4


def large_sizes() -> dict[Size, float]:
    """Return the product's picture shapes with their shares; the square has the largest one."""
    shapes = buckets(SIDE, 16)
    return {shape: 0.5 if shape == (SIDE, SIDE) else 0.5 / (len(shapes) - 1) for shape in shapes}


def stretch_of(size: Size) -> float:
    """Return the ratio of the product's picture side to this size's, rounded to a whole number."""
    return float(max(1, round(SIDE / math.sqrt(size[0] * size[1]))))


@dataclass(frozen=True)
class Phase:
    """A part of the run.

    Attributes:
        until: The share of the run at which the phase ends.
        sizes: The picture sizes with their shares.
        frames: The number of a section's latent frames that are trained in a step.
        batch: The number of clips in a processor core's step.
    """

    until: float
    sizes: dict[Size, float]
    frames: int
    batch: int


SMALL_SIZES = {(64, 64): 0.6, (48, 80): 0.12, (80, 48): 0.12, (64, 48): 0.08, (48, 64): 0.08}
# Three frames a step cost half as much, but weights trained so are worse at all nine, which sampling makes.
PHASES = (
    Phase(0.20, SMALL_SIZES, 3, 32),
    Phase(0.45, large_sizes(), 3, 12),
    Phase(1.00, large_sizes(), LATENT_WINDOW_SIZE, 6),
)


@dataclass
class Task:
    """What one step is to do; ``seed`` is that of its noise, and ``frames`` the places that are trained."""

    seed: int
    section: SectionTimes
    frames: torch.Tensor
    own_history: bool
    batch: ClipBatch


@dataclass
class Tasks(Dataset):
    """The tasks of one process in one phase, by the number of the step.

    Attributes:
        clips: The number of clips in a step.
        canvases: The number of bitmaps of each kind that backgrounds are chosen from.
    """

    phase: Phase
    seed: int
    rank: int
    clips: int
    canvases: int

    def __getitem__(self, step: int) -> Task:
        # All processes draw the same sizes, so that none waits for the longer step of another.
        size = _draw(np.random.default_rng([self.seed, step]), self.phase.sizes)
        rng = np.random.default_rng([self.seed, step, 1 + self.rank])
        seed = int(rng.integers(2**62))
        section = draw_section(rng)
        frames = draw_frames(torch.Generator().manual_seed(seed), self.phase.frames)
        own_history = section.before is not None and rng.random() < OWN_HISTORY
        wanted = times_of(section, frames, own_history)
        batch = draw_batch(rng, size, self.clips, wanted, self.canvases)
        return Task(seed, section, frames, own_history, batch)

    def following(self, step: int, workers: int) -> Iterator[Task]:
        """Return the tasks from ``step`` on, prepared by ``workers`` other processes, or by this one if 0."""
        ahead = TASKS_AHEAD if workers else None
        steps = itertools.count(step)
        loader = DataLoader(
            self, None, sampler=steps, num_workers=workers, collate_fn=_same, prefetch_factor=ahead
        )
        return iter(loader)


def _same(task: Task) -> Task:
    return task


def _draw(rng: np.random.Generator, shares: dict[Size, float]) -> Size:
    sizes, weights = list(shares), np.array(list(shares.values()))
    return sizes[int(rng.choice(len(sizes), p=weights / weights.sum()))]

"""The tasks of the transformer's training: everything random in a step except the noise.

A task follows from the seed and the step's number. On a GPU, which draws the pixels, other processes prepare
the tasks of the next steps.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import DataLoader, Dataset

from diffusers_helper.families.family import buckets
from training.clips import ClipBatch, Size, draw_batch
from training.sections import SectionTimes, VideoPlan, draw_plan

# The share of later sections that continue what the model itself has made.
OWN_HISTORY = 0.4
TASKS_AHEAD = 4
SQUARE = 0.5  # the share of square pictures; the other shapes have equal shares


def multiple_of(side: int) -> int:
    """Return the number of which a picture's sides are multiples, with which there are square pictures."""
    return 32 if side >= 256 else 16


@dataclass(frozen=True)
class Sides:
    """The two sides of pictures, and the share of steps with the larger one.

    A larger picture has four times as many tokens, so a step has a quarter as many of them. What motions are
    is learned at the smaller side, where four times as many clips fit into the time; how they look at the
    larger one, in most steps of the second part of the run.
    """

    small: int = 128
    large: int = 256
    early: float = 0.35
    late: float = 0.75
    until: float = 0.4

    def share(self, done: float) -> float:
        """Return the share of steps at the larger side, at a share of the run."""
        return self.early if done < self.until else self.late

    def draw(self, rng: np.random.Generator, done: float) -> tuple[Size, int]:
        """Return a random size, and the number by which a step's clips are divided."""
        side, part = (self.large, 4) if rng.random() < self.share(done) else (self.small, 1)
        shapes = buckets(side, multiple_of(side))
        if rng.random() < SQUARE:
            return (side, side), part
        return shapes[int(rng.integers(len(shapes)))], part


@dataclass
class Task:
    """What one step is to do; ``seed`` is that of its noise.

    Attributes:
        section: The section that is trained.
        before: The section before it, if the model is to make that one itself.
    """

    seed: int
    section: SectionTimes
    before: SectionTimes | None
    batch: ClipBatch


def wanted_times(plan: VideoPlan, number: int, own_history: bool) -> list[int]:
    """Return the times of the latents that a step on one section of a video needs, in order."""
    section, other = plan.section(number), plan.before(number)
    times = section.seen() | set(section.noisy)
    if own_history and other is not None:
        before = plan.section(other)
        times = (times - set(before.noisy)) | before.seen()
    return sorted(times if plan.has_picture else times - {0})


@dataclass
class Tasks(Dataset):
    """The tasks by the number of the step.

    Attributes:
        clips: The number of clips in a step at the smaller side.
        canvases: The number of bitmaps of each kind that backgrounds are chosen from.
        steps: About how many steps the run will have, which determines the shares of the sides.
    """

    sides: Sides
    seed: int
    clips: int
    canvases: int
    steps: int

    def __getitem__(self, step: int) -> Task:
        rng = np.random.default_rng([self.seed, step])
        size, part = self.sides.draw(rng, step / self.steps)
        plan = draw_plan(rng)
        number = int(rng.integers(plan.count))
        other = plan.before(number)
        own_history = other is not None and rng.random() < OWN_HISTORY
        wanted = wanted_times(plan, number, own_history)
        batch = draw_batch(rng, size, max(1, self.clips // part), plan, number, wanted, self.canvases)
        before = plan.section(other) if own_history and other is not None else None
        return Task(int(rng.integers(2**62)), plan.section(number), before, batch)

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

"""The sections of the videos in training: what each makes and sees, and at which frames of a story it lies.

The times of latents are counted from the picture, which is 0; a video of N sections has the times 1 to 9 N.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch

from diffusers_helper.families.packing import HISTORY, LATENT_WINDOW_SIZE, Mode, frame_indices, paddings

# A latent stands for four frames. The latent of a single picture is nearest to it if the picture lies this
# many frames before the last of them.
BEFORE_LAST = 1.5
# The relative frequency of videos of one to eight sections, and of a change of words at each border.
LENGTHS = (0.18, 0.26, 0.16, 0.14, 0.08, 0.06, 0.04, 0.08)
CHANGE = 0.3
# The share of videos without a picture, and their longest.
WORDS_ALONE, LONGEST_FROM_WORDS = 0.15, 4


@dataclass(frozen=True)
class SectionTimes:
    """The times of the latents that a section makes, and of those that it sees; None stands for zeros.

    Attributes:
        start: The time of the latent at which it starts: the picture's or, in inverted order after a change
            of words, that of the draft of what comes before.
    """

    mode: Mode
    padding: int
    noisy: list[int]
    history: list[int | None]
    start: int = 0

    def seen(self) -> set[int]:
        """Return the times of the latents that it sees."""
        return {self.start, *(time for time in self.history if time is not None)}


@dataclass(frozen=True)
class VideoPlan:
    """A video: the order, and the numbers of sections for which the words stay the same."""

    mode: Mode
    runs: tuple[int, ...]
    has_picture: bool = True

    @property
    def count(self) -> int:
        """Return the number of sections."""
        return sum(self.runs)

    @property
    def length(self) -> int:
        """Return the number of latents, that of the picture included."""
        return self.count * LATENT_WINDOW_SIZE + 1

    @cached_property
    def first_sections(self) -> list[int]:
        """Return the first section of each run."""
        return [*accumulate((0, *self.runs[:-1]))]

    def run_of(self, section: int) -> int:
        """Return the number of the run to which a section belongs."""
        return sum(first <= section for first in self.first_sections) - 1

    @cached_property
    def clock(self) -> list[int]:
        """Return how many latents' worth of motion has passed at each time.

        An inverted section knows only how far it seems to be from its start. In runs of more than four
        sections the product gives all between the second and the last but one the same distance; motion
        rests there in all but the last of them, since they could not know how far it has come.
        """
        passed = [0]
        for run in self.runs:
            for place in range(run):
                rests = self.mode == "inverted" and run > 4 and 2 <= place < run - 2
                passed += [passed[-1] + (0 if rests else i + 1) for i in range(LATENT_WINDOW_SIZE)]
        return passed

    def begins(self) -> list[float]:
        """Return the frames of the story at which the words change."""
        return [4.0 * self.clock[self._from_start(9 * first)] for first in self.first_sections]

    def frame(self, time: int) -> float:
        """Return the frame of the story that the latent of a time shows, drawn as a single picture."""
        time = self._from_start(time)
        passed = self.clock[time]
        moves = time > 0 and passed > self.clock[time - 1]
        return 4 * passed - (BEFORE_LAST if moves else 0.0)

    def _from_start(self, time: int) -> int:
        # Without a picture, the video begins with the first latent that is made.
        return time if self.has_picture else max(0, time - 1)

    def section(self, number: int) -> SectionTimes:
        """Return a section by its place in the video, from 0."""
        begin, last = number * LATENT_WINDOW_SIZE, self.count * LATENT_WINDOW_SIZE
        noisy = list(range(begin + 1, begin + LATENT_WINDOW_SIZE + 1))
        if self.mode == "inverted":
            run = self.run_of(number)
            first = self.first_sections[run]
            padding = paddings(self.runs[run])[first - 1 - number]
            # The nearest come first: 1x, 2x, 4x.
            following = range(noisy[-1] + 1, noisy[-1] + 1 + HISTORY)
            history = [time if time <= last else None for time in following]
            return SectionTimes("inverted", padding, noisy, history, first * LATENT_WINDOW_SIZE)
        # The oldest come first: 4x, 2x, 1x. Without a picture, the first latent that was made replaces it.
        oldest = 0 if self.has_picture else 1
        earlier = [time if time >= oldest else None for time in range(begin - HISTORY + 1, begin + 1)]
        return SectionTimes("forward", 0, noisy, earlier, oldest if begin else 0)

    def before(self, number: int) -> int | None:
        """Return the section that is made before another one, which is its neighbour."""
        other = number + 1 if self.mode == "inverted" else number - 1
        return other if 0 <= other < self.count else None


def draw_plan(rng: np.random.Generator) -> VideoPlan:
    """Return a random video."""
    has_picture = rng.random() >= WORDS_ALONE
    lengths = LENGTHS if has_picture else LENGTHS[:LONGEST_FROM_WORDS]
    count = 1 + int(rng.choice(len(lengths), p=np.array(lengths) / sum(lengths)))
    runs = [1]
    for _ in range(count - 1):
        if rng.random() < CHANGE:
            runs.append(1)
        else:
            runs[-1] += 1
    return VideoPlan("inverted" if rng.random() < 0.5 else "forward", tuple(runs), has_picture)


def gather(latents: torch.Tensor, wanted: list[int | None]) -> torch.Tensor:
    """Return latents (B, 16, n, h, w) at these times; None stands for zeros."""
    zeros = torch.zeros_like(latents[:, :, :1])
    return torch.cat([zeros if time is None else latents[:, :, time : time + 1] for time in wanted], dim=2)


def model_inputs(
    section: SectionTimes, start: torch.Tensor, history: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return a section's clean inputs from ``start`` (B, 16, 1, h, w) and ``history`` (B, 16, 19, h, w)."""
    indices = frame_indices(section.mode, LATENT_WINDOW_SIZE, section.padding)
    if section.mode == "inverted":
        near, half, quarter = history.split([1, 2, 16], dim=2)
    else:
        quarter, half, near = history.split([16, 2, 1], dim=2)
    return {
        "latents_clean": torch.cat([start, near], dim=2),
        "latents_history_2x": half,
        "latents_history_4x": quarter,
        "indices_latents": torch.tensor(indices.noisy, device=start.device),
        "indices_latents_clean": torch.tensor(indices.clean, device=start.device),
        "indices_latents_history_2x": torch.tensor(indices.history_2x, device=start.device),
        "indices_latents_history_4x": torch.tensor(indices.history_4x, device=start.device),
    }

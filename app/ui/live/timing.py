"""The estimate of the rest of a job, from the times of its own steps and decodes so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from diffusers_helper.events import STAGES
from diffusers_helper.packing import SectionPlan

_SHORTEST = 0.001  # in seconds; the clock behind the times may be set back
_RECENT_STEPS, _RECENT_SECTIONS = 30, 3


@dataclass
class Timing:
    """The measured durations of one job, in seconds, and the estimate of the rest.

    A section costs its steps, the time before the first of them (such as moving the weights), and the decode
    and write of its frames. The first decode has half as many frames as the others, so the tail is counted
    per frame, and sections are not taken to be equal.
    """

    plan: SectionPlan
    steps: int
    _step_seconds: list[float] = field(default_factory=list[float])
    _lead_seconds: list[float] = field(default_factory=list[float])
    _frame_seconds: list[float] = field(default_factory=list[float])

    def step_took(self, seconds: float, *, is_first: bool) -> None:
        """Add the time between two steps' ends, or from the section's beginning to its first step's end."""
        (self._lead_seconds if is_first else self._step_seconds).append(max(_SHORTEST, seconds))

    def tail_took(self, seconds: float, section: int) -> None:
        """Add the time to decode and write a section, numbered in order of making from 1."""
        self._frame_seconds.append(max(_SHORTEST, seconds) / self.plan[section - 1].decoded_frames)

    @property
    def step(self) -> float | None:
        """Return the usual seconds of a step."""
        if self._step_seconds:
            return median(self._step_seconds[-_RECENT_STEPS:])
        return self._lead_seconds[-1] if self._lead_seconds else None

    @property
    def has_tail(self) -> bool:
        """Return whether a decode has been measured."""
        return bool(self._frame_seconds)

    def costs(self) -> tuple[float, float]:
        """Return the cost of a section's steps and of a frame's tail, in seconds, or else in steps."""
        step = self.step
        if step is None:
            return float(self.steps), STAGES["decode"].weight
        lead = median(self._lead_seconds[-_RECENT_SECTIONS:]) if self._lead_seconds else step
        if len(self._lead_seconds) == 1:
            lead = min(lead, 2 * step)  # the very first step also loads caches for the later ones
        sampling = lead + step * (self.steps - 1)
        if self._frame_seconds:
            return sampling, median(self._frame_seconds[-_RECENT_SECTIONS:])
        return sampling, step * STAGES["decode"].weight

    def frames(self, sections: slice) -> int:
        """Return how many frames are decoded for these sections, counted from 0 in order of making."""
        return sum(section.decoded_frames for section in self.plan.sections[sections])

    def left(self, section: int, step: int, since: float, *, in_tail: bool) -> float | None:
        """Estimate the seconds to the end of the job; None while nothing is measured.

        Args:
            section: The section in the making, from 1; all before it are finished.
            step: The number of its finished steps.
            since: Seconds since the last step, or since its decode began.
            in_tail: Whether it is being decoded or written.
        """
        if self.step is None:
            return None
        sampling, frame = self.costs()
        tail = frame * self.plan[section - 1].decoded_frames
        if in_tail:
            rest = max(0.0, tail - since)
        elif step:
            rest = max(0.0, self.step * (self.steps - step) - min(since, self.step)) + tail
        else:
            rest = sampling - min(since, sampling - self.step * (self.steps - 1)) + tail
        later = len(self.plan) - section
        return rest + later * sampling + frame * self.frames(slice(section, None))

"""The estimate of the rest of a job, from the machine's pace and the job's own times so far."""

from dataclasses import dataclass, field
from statistics import fmean, median

from app.jobs.pace import Effort, Pace
from diffusers_helper.events import STAGES
from diffusers_helper.families.packing import DEFAULT_CHUNK, SectionPlan, decode_windows

_SHORTEST = 0.001  # in seconds; the clock behind the times may be set back
_RECENT_STEPS, _RECENT_SECTIONS = 30, 3


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    section: int
    step: int = 0
    tail_share: float = 0.0


@dataclass
class Timing:
    """The measured durations of one job, in seconds, and the estimate of the rest.

    The time of a section consists of its steps, the extra time of the first step (for example to move the
    weights), and the tail: decoding and writing, which is measured per decoded latent frame. The machine's
    pace in earlier jobs counts as one more measurement, and at first is the only one.

    Attributes:
        steps: The number of steps of each section.
        chunk: The latent frames by which the VAE's windows of time advance.
        skips: Whether a step cache makes some of the steps short, so their median says little.
        start_up: The time before the first section; None if unknown.
        expected_step, expected_tail: The engine's own estimates, until these are measured; 0 if unknown.
    """

    plan: SectionPlan
    steps: list[int]
    chunk: int = DEFAULT_CHUNK
    skips: bool = False
    start_up: float | None = None
    expected_step: float = 0.0
    expected_tail: float = 0.0
    _step_seconds: list[float] = field(default_factory=list[float])
    _lead_seconds: list[float] = field(default_factory=list[float])
    _tail_seconds: list[float] = field(default_factory=list[float])  # per latent frame
    _tail_so_far: float | None = None  # the same, of the section that is being decoded
    # The latent frames of the windows that each section decodes, with those of the overlaps, and their sums
    _windows: tuple[tuple[int, ...], ...] = ()
    _work: tuple[int, ...] = ()
    _frames_a_latent: float = 0.0

    def __post_init__(self) -> None:
        self._windows = decode_windows(self.plan, self.chunk)
        self._work = tuple(map(sum, self._windows))
        self._frames_a_latent = sum(section.decoded_frames for section in self.plan) / sum(self._work)

    def share_of_tail(self, section: int, piece: int, pieces: int) -> float:
        """Compute the share of a section's decode that is done after so many pieces: tiles of its windows."""
        windows = self._windows[section - 1]
        num_done, remainder = divmod(piece * len(windows), pieces)
        latents_done = sum(windows[:num_done])
        latents_done += remainder / pieces * sum(windows[num_done : num_done + 1])
        return latents_done / sum(windows)

    def add_estimate(self, pace: Pace, effort: Effort) -> None:
        step = max(_SHORTEST, pace.step * effort.step)
        self.start_up = pace.start_up
        self._step_seconds.append(step)
        self._lead_seconds.append(pace.lead + step)
        self._tail_seconds.append(max(_SHORTEST, pace.tail * effort.megapixels))

    def add_step(self, seconds: float, *, is_first: bool) -> None:
        """Add the time between two steps' ends, or from the section's beginning to its first step's end."""
        (self._lead_seconds if is_first else self._step_seconds).append(max(_SHORTEST, seconds))

    def add_tail(self, seconds: float, section: int) -> None:
        """Add the time to decode and write a section. Sections are numbered as they are made, from 1."""
        self._tail_so_far = None
        self._tail_seconds.append(max(_SHORTEST, seconds) / self._work[section - 1])

    def add_tail_share(self, seconds: float, section: int, share: float) -> None:
        self._tail_so_far = max(_SHORTEST, seconds) / (share * self._work[section - 1])

    @property
    def step(self) -> float | None:
        if self._step_seconds:
            recent = self._step_seconds[-_RECENT_STEPS:]
            return fmean(recent) if self.skips else median(recent)
        return self.expected_step or (self._lead_seconds[-1] if self._lead_seconds else None)

    @property
    def has_tail(self) -> bool:
        return bool(self._tail_seconds)

    @property
    def _rates(self) -> tuple[float, float, float]:
        """The seconds of a section's first step, each further one, and a latent frame of the tail."""
        step = self.step or 1.0
        lead = median(self._lead_seconds[-_RECENT_SECTIONS:]) if self._lead_seconds else step
        if self.start_up is None and len(self._lead_seconds) == 1:
            lead = min(lead, 2 * step)  # the very first step also loads caches for the later ones
        if self._tail_seconds:
            latent = median(self._tail_seconds[-_RECENT_SECTIONS:])
        elif self._tail_so_far is not None:
            latent = self._tail_so_far
        elif self.expected_tail:
            latent = self.expected_tail / self._work[0]
        else:
            latent = step * STAGES["decode"].weight * self._frames_a_latent
        return lead, step, latent

    def tail(self, section: int) -> float:
        return self._rates[2] * self._work[section - 1]

    def total(self, first_section: int = 1) -> float:
        lead, step, latent = self._rates
        steps, work = self.steps[first_section - 1 :], self._work[first_section - 1 :]
        return lead * len(steps) + step * (sum(steps) - len(steps)) + latent * sum(work)

    def section_remaining(self, point: TimelinePoint, elapsed: float = 0.0) -> float:
        """Estimate the seconds to the end of a section, `elapsed` seconds after it was at this point."""
        lead, step, _ = self._rates
        steps_left = self.steps[point.section - 1] - point.step
        current = step if point.step else lead  # of the step that is being computed
        sampling = current + step * (steps_left - 1) - min(elapsed, current) if steps_left > 0 else 0.0
        return sampling + self.tail(point.section) * (1.0 - point.tail_share)

    def remaining(self, point: TimelinePoint, elapsed: float = 0.0) -> float:
        return self.section_remaining(point, elapsed) + self.total(point.section + 1)

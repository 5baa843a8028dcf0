"""What is known of a job that is being watched, gathered from its events. No markup, no gradio."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.jobs.job import Job
from diffusers_helper.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    JobStarted,
    SectionFinished,
    Stage,
    StageStarted,
    StepDone,
    Warned,
)  # fmt: skip
from diffusers_helper.packing import FPS

# Decoding and writing a section, as a share of its denoising. Only the bar's evenness hangs on it.
_TAIL = 0.15

_BEFORE_SECTIONS = {
    "load": "Loading the model",
    "text": "Encoding the prompt",
    "image": "Preparing the picture",
    "vae_encode": "Encoding the picture",
    "vision": "Looking at the picture",
}
_IN_SECTION = {"decode": "decoding", "write": "writing the video"}


@dataclass
class LiveJob:
    """One job as its events so far tell it. `apply` them in order, from the first.

    Attributes:
        job: a snapshot from the store; replace it by a newer one at will.
        video: path of the newest version that can be watched.
        seconds_in_front: how much has been put before the first version's beginning.
        preview: path of a small picture of the section in the making.
        end: the final event.
    """

    job: Job
    sections: int = 0
    frames: int = 0
    width: int = 0
    height: int = 0
    stage: Stage | None = None
    section: int = 0
    sections_done: int = 0
    step: int = 0
    steps: int = 0
    preview: str | None = None
    video: str | None = None
    video_frames: int = 0
    seconds_in_front: float = 0.0
    warnings: list[str] = field(default_factory=list[str])
    end: Finished | Cancelled | Failed | None = None
    _first_step: float | None = None
    _last_step: float = 0.0
    _section_began: float = 0.0
    _section_seconds: list[float] = field(default_factory=list[float])

    def apply(self, event: Event) -> None:
        """Takes in the next event."""
        if isinstance(event, JobStarted):
            self.sections, self.frames = event.sections, event.frames
            self.width, self.height = event.width, event.height
        elif isinstance(event, StageStarted):
            self._begin(event)
        elif isinstance(event, StepDone):
            self._step(event)
        elif isinstance(event, SectionFinished):
            self._finish_section(event)
        elif isinstance(event, Warned):
            self.warnings.append(event.message)
        elif isinstance(event, Finished | Cancelled | Failed):
            self.end, self.preview = event, None
            if event.video is not None:
                self.video, self.video_frames = event.video, event.frames

    def _begin(self, event: StageStarted) -> None:
        self.stage = event.stage
        if event.section is not None and event.section != self.section:
            self.section, self.step, self._first_step = event.section, 0, None
            self._section_began = event.time

    def _step(self, event: StepDone) -> None:
        self.section, self.step, self.steps = event.section, event.step, event.steps
        self.preview = event.preview or self.preview
        if self._first_step is None:
            self._first_step = event.time
        self._last_step = event.time

    def _finish_section(self, event: SectionFinished) -> None:
        self.sections, self.sections_done = event.sections, event.section
        if self.video is not None:
            self.seconds_in_front += event.added_in_front / FPS
        self.video, self.video_frames, self.preview = event.video, event.frames, None
        self._section_seconds.append(event.time - self._section_began)

    @property
    def state(self) -> str:
        """As in the store: its word counts before the final event is read."""
        return self.job.state

    @property
    def headline(self) -> str:
        """What happens now, in words."""
        if self.job.is_over:
            return {"finished": "Finished", "cancelled": "Ended", "failed": "Failed"}[self.job.state]
        if self.job.state == "queued":
            return "Waiting for its turn"
        if self.stage in _BEFORE_SECTIONS and not self.section:
            return _BEFORE_SECTIONS[self.stage]
        if not self.section:
            return "Starting the engine"
        of = f"Section {self.section} of {self.sections}"
        if self.stage in _IN_SECTION:
            return f"{of}, {_IN_SECTION[self.stage]}"
        return f"{of}, step {self.step} of {self.steps}" if self.step else of

    @property
    def percent(self) -> float:
        """Share of the whole work that is done, 0 to 100; never falls while a job runs."""
        if self.job.state == "finished":
            return 100.0
        if not self.sections:
            return 0.0
        within = 0.0
        if self.section > self.sections_done and self.steps:
            within = self.step / self.steps / (1 + _TAIL)
        return min(99.0, 100 * (self.sections_done + within) / self.sections)

    def seconds_left(self, elapsed: float) -> float | None:
        """Estimate for the rest of the job, `elapsed` seconds after it began; None while nothing is known."""
        if self.job.is_over:
            return None
        if self._section_seconds:
            # The newest sections tell most: the first one is decoded alone, and caches warm up.
            recent = self._section_seconds[-3:]
            each = sum(recent) / len(recent)
            begun = self.section > self.sections_done
            spent = elapsed - self._section_began if begun else 0.0
            return max(0.0, each - spent) + each * (self.sections - self.sections_done - 1)
        if self._first_step is None or self.step < 2:
            return None
        pace = (self._last_step - self._first_step) / (self.step - 1)
        each = pace * self.steps * (1 + _TAIL)
        spent = pace * self.step + elapsed - self._last_step
        return max(0.0, each - spent) + each * (self.sections - 1)

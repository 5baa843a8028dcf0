"""The state of a watched job, gathered from its events, without markup and gradio."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.jobs.job import BEGUN, Command, Job
from app.jobs.pace import Pace, effort_of
from app.jobs.queue import RESUMED
from app.jobs.storage.commands import TAKEN_OVER
from app.ui.live.timing import TimelinePoint, Timing
from app.ui.timeline import section_prompts
from diffusers_helper import events
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.events import Event, Stage
from diffusers_helper.families.packing import SectionPlan
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.models.registry import info_of, plan_of
from diffusers_helper.request import BEFORE

CellState = Literal["waiting", "running", "done"]
_STEPS: tuple[Stage, ...] = ("sample", "finish")
_TAIL: tuple[Stage, ...] = ("decode", "write")


@dataclass(frozen=True, slots=True)
class Cell:
    """A section, numbered as made, at its time in the whole video, with its text if that changes."""

    number: int
    start: float
    end: float
    state: CellState
    text: str


@dataclass
class LiveJob:
    """A job as its events so far describe it; `apply` takes them in order, from the first.

    Attributes:
        job: A snapshot from the store, which may be replaced by a newer one, like `commands`, `jobs_first`,
            `queue_is_paused` and `awake`. Its state changes before the final event is read.
        width, height: In pixels; 0 while they are unknown.
        num_kept: The number of sections that a branch has from another job; the last one is decoded again.
        section: The number of the section that is being made, as in `Cell`; 0 before the first.
        reading: The bytes of the model that were read, and all of its bytes; None unless its files are read.
        piece, pieces: The numbers of finished and of all pieces of the stage's work; 0 for a single one.
        expected: The seconds that the stage will probably take; 0 if unknown.
        video_due: The time at which there will probably be a first section to watch; None if unknown.
        seconds_in_front: Seconds that were added before the first version's beginning.
        last_sign: Time of the engine's last event, in seconds since the job began to run.
    """

    job: Job
    pace: Pace | None = None
    width: int = 0
    height: int = 0
    plan: SectionPlan = field(init=False)
    timing: Timing = field(init=False)
    section_texts: Mapping[int, str] = field(init=False)
    num_kept: int = field(init=False)
    commands: frozenset[Command] = frozenset()
    jobs_first: int = 0
    queue_is_paused: bool = False
    awake: bool = False
    stage: Stage | None = None
    section: int = 0
    sections_done: int = 0
    step: int = 0
    reading: tuple[int, int] | None = None
    piece: int = 0
    pieces: int = 0
    expected: float = 0.0
    video_due: float | None = None
    preview: str | None = None
    video: str | None = None
    video_frames: int = 0
    seconds_in_front: float = 0.0
    last_sign: float = 0.0
    warnings: list[str] = field(default_factory=list[str])
    stages: dict[Stage | None, float] = field(default_factory=dict[Stage | None, float])
    end: events.Finished | events.Cancelled | events.Failed | None = None
    _stage_began: float = 0.0
    _tail_began: float = 0.0
    _last_step_at: float = 0.0
    # The shares of all work, and of the section's, that are left.
    _remaining: float = 1.0
    _section_remaining: float = 1.0

    def __post_init__(self) -> None:
        self.section_texts, self.num_kept = section_prompts(self.job)
        request, info = self.job.request, info_of(self.job.request.model)
        self.plan = plan_of(request)
        if request.finish:  # of which the model's pace says nothing
            self.pace = None
        steps = steps_of(request, info)
        self.timing = Timing(self.plan, steps, request.vae_chunk, request.step_cache != OFF)
        self._estimate()

    def apply(self, event: Event) -> None:
        """Update the state with the next event. One that only a damaged log can have is passed over."""
        section: int | None = getattr(event, "section", None)
        if section is not None and not 1 <= section <= self.sections:
            return
        previous = self._point
        if isinstance(event, events.JobStarted):
            self.width, self.height = event.width, event.height
            self._restart(event.time)
            self._estimate()
        elif isinstance(event, events.StageStarted):
            self._start_stage(event)
        elif isinstance(event, events.Reading):
            is_over = event.done_bytes >= event.total_bytes
            self.reading = None if is_over else (event.done_bytes, event.total_bytes)
        elif isinstance(event, events.StepDone):
            self._add_step(event)
        elif isinstance(event, events.PieceDone):
            self._add_piece(event)
        elif isinstance(event, events.SectionFinished):
            self._finish_section(event)
        elif isinstance(event, events.Warned):
            if event.message != RESUMED:  # a user did it
                self.warnings.append(event.message)
            if event.message in (RESUMED, TAKEN_OVER):
                self._restart(event.time)
        elif isinstance(event, events.Finished | events.Cancelled | events.Failed):
            self._add_stage(event.time)
            self.end, self.preview = event, None
            if event.video is not None:
                self.video, self.video_frames = event.video, event.frames
        if isinstance(event, events.StepDone | events.PieceDone | events.SectionFinished):
            self._advance(previous)
        self.last_sign = event.time

    def _estimate(self) -> None:
        if self.pace is not None and self.width and self.timing.start_up is None:
            request = self.job.request
            effort = effort_of(request, info_of(request.model), self.width * self.height)
            self.timing.add_estimate(self.pace, effort)

    def _restart(self, time: float) -> None:
        """Forget the work at which an earlier run was interrupted; the next engine has yet to begin any."""
        self._add_stage(time)
        self.stage, self.reading, self.preview, self.end, self.expected = None, None, None, None, 0.0
        self.section, self.step, self.piece, self.pieces = self.sections_done, 0, 0, 0
        self._section_remaining = 1.0
        self._last_step_at = self._tail_began = time

    def _add_stage(self, time: float) -> None:
        self.stages[self.stage] = self.stages.get(self.stage, 0.0) + max(0.0, time - self._stage_began)
        self._stage_began = time

    def _start_stage(self, event: events.StageStarted) -> None:
        self._add_stage(event.time)
        self.stage = event.stage
        self.reading = None
        self.expected = event.expected_seconds
        self.video_due = event.time + event.seconds_to_video if event.seconds_to_video else self.video_due
        if event.stage != "write":
            self.piece = self.pieces = 0
        if event.section is not None and event.section != self.section:
            self.section, self.step = event.section, 0
        if event.stage in _STEPS:
            self._last_step_at = event.time
            self.timing.expected_step = event.expected_seconds / self.steps
            self.timing.expected_tail = max(0.0, event.seconds_to_video - event.expected_seconds)
        elif event.stage == "decode":  # what was tried since the last step is not part of the tail
            self._tail_began = event.time

    def _add_step(self, event: events.StepDone) -> None:
        self.section, self.step = event.section, event.step
        event.progress(self.timing.steps)
        self.timing.add_step(event.time - self._last_step_at, is_first=event.step == 1)
        self.preview = event.preview or self.preview
        self._last_step_at = self._tail_began = event.time

    def _add_piece(self, event: events.PieceDone) -> None:
        self.piece, self.pieces = event.piece, event.pieces
        if self.in_tail:
            self.timing.add_tail_share(event.time - self._tail_began, self.section, self.tail_share)
            self._last_step_at = event.time

    def _finish_section(self, event: events.SectionFinished) -> None:
        if self.stage in _TAIL:
            self.timing.add_tail(event.time - self._tail_began, event.section)
        self._add_stage(event.time)
        self.section = self.sections_done = event.section
        if self.video is not None:
            self.seconds_in_front += event.added_in_front / self.plan.fps
        self.video = event.video
        self.video_frames = event.frames
        self.preview = None

    @property
    def sections(self) -> int:
        return len(self.plan)

    @property
    def sections_made(self) -> int:
        return max(self.sections_done, self.num_kept)

    @property
    def steps(self) -> int:
        return self.timing.steps[max(0, self.section - 1)]

    @property
    def in_section(self) -> bool:
        """False for what comes before the first section of each run."""
        return self.section > 0 and self.stage in (*_STEPS, *_TAIL)

    @property
    def in_tail(self) -> bool:
        return self.stage in _TAIL and self.section > self.sections_done

    @property
    def tail_share(self) -> float:
        if not self.in_tail or not self.pieces:
            return 0.0
        return self.timing.share_of_tail(self.section, self.piece, self.pieces)

    @property
    def cells(self) -> list[Cell]:
        """The sections in order of the video: all, or those that were made before the job ended."""
        cells: list[Cell] = []
        # From words alone, the first section lacks the frames of a picture.
        missing_seconds = max(0.0, len(self.plan) * self.plan.section_seconds - self.plan.seconds)
        before = self.seconds_before
        for section in sorted(self.plan, key=lambda section: section.video_index):
            number, index = section.number, section.video_index
            state: CellState = "waiting"
            if number == self.section > self.sections_done and self.job.state in BEGUN:
                state = "running"
            elif number <= self.sections_made:
                state = "done"
            elif self.job.is_over and self.sections_made:
                continue
            start = max(0.0, index * self.plan.section_seconds - missing_seconds)
            end = max(0.0, (index + 1) * self.plan.section_seconds - missing_seconds)
            if index == len(self.plan) - 1:
                end = self.plan.seconds
            start, end = start + before, end + before
            cells.append(Cell(number, start, end, state, self.section_texts.get(number, "")))
        return cells

    @property
    def seconds_before(self) -> float:
        """The length of the video that is continued, once it is in front of what can be watched."""
        if not self.video_frames or not self.job.request.video or self.job.request.extend == BEFORE:
            return 0.0
        return max(0, self.video_frames - self.plan[self.sections_made - 1].total_frames) / self.plan.fps

    @property
    def hidden_in_front(self) -> float:
        if self.job.request.mode == "forward" or not self.video_frames:
            return 0.0
        # The section that closes a loop comes last, behind the others.
        closing = self.plan[-1].final_frames if self.plan[-1].is_closing else 0
        return max(0, self.plan.total_frames - closing - self.video_frames) / self.plan.fps

    @property
    def percent(self) -> float:
        """The share of the whole work that is done, 0 to 100; it never falls while a job runs."""
        return 100.0 if self.job.state == "finished" else min(99.0, 100.0 * (1.0 - self._remaining))

    @property
    def section_percent(self) -> float:
        return 100.0 * (1.0 - self._section_remaining)

    @property
    def _point(self) -> TimelinePoint:
        if self.section == self.sections_done:
            return TimelinePoint(self.section + 1)
        return TimelinePoint(self.section, self.steps if self.in_tail else self.step, self.tail_share)

    def _advance(self, previous: TimelinePoint) -> None:
        """Move both shares on. One that was shown stays; only what remains is divided by a new estimate."""
        point = self._point
        timing = self.timing
        if max(point.section, previous.section) > self.sections:
            self._remaining = self._section_remaining = 0.0
            return
        self._remaining *= _ratio(timing.remaining(point), timing.remaining(previous))
        if point.section != previous.section:
            self._section_remaining, previous = 1.0, TimelinePoint(point.section)
        self._section_remaining *= _ratio(timing.section_remaining(point), timing.section_remaining(previous))

    @property
    def is_guess(self) -> bool:
        """True while the time left is a guess, because no decode has been measured yet."""
        return self.section > 0 and not self.timing.has_tail

    def stage_seconds(self, elapsed: float) -> float:
        return max(0.0, elapsed - self._stage_began)

    def seconds_to_video(self, elapsed: float) -> float | None:
        """Estimate the time to the first section that can be watched; None if unknown, or if there is one."""
        if self.sections_made or self.job.is_over:
            return None
        if (seconds_left := self.seconds_left(elapsed)) is not None:
            return seconds_left - self.timing.total(2)
        return None if self.video_due is None else max(0.0, self.video_due - elapsed)

    def seconds_left(self, elapsed: float) -> float | None:
        """Estimate the remaining time, `elapsed` seconds after the job began; None while nothing is known."""
        timing, point = self.timing, self._point
        if self.job.is_over:
            return None
        if not self.section:
            start_up = timing.start_up
            return None if start_up is None else max(0.0, start_up - elapsed) + timing.total()
        if timing.step is None:
            return None
        if point.section > self.sections:
            return 0.0
        if point.section > self.section:
            return timing.remaining(point, elapsed - self.last_sign)
        since = elapsed - max(self._last_step_at, self._tail_began)
        if self.in_tail:
            return max(0.0, timing.section_remaining(point) - since) + timing.total(self.section + 1)
        remaining = timing.remaining(point, since)
        if self.stage not in _STEPS:  # such as the choice of convolutions before the first decode
            remaining += max(0.0, self.expected - self.stage_seconds(elapsed))
        return remaining


def _ratio(now: float, previous: float) -> float:
    return min(1.0, now / previous) if previous > 0 else 0.0

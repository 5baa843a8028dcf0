"""The state of a watched job, gathered from its events, without markup and gradio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.jobs.job import BEGUN, Job
from app.jobs.pace import Effort, Pace
from app.jobs.queue import RESUMED
from app.jobs.storage.commands import TAKEN_OVER
from app.ui.live.timing import TimelinePoint, Timing
from app.ui.timeline import section_words
from diffusers_helper import events
from diffusers_helper.conditions.timeline import steps_of
from diffusers_helper.events import Event, Stage
from diffusers_helper.families.packing import SectionPlan
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.models.registry import info_of, plan_of

CellState = Literal["waiting", "running", "done"]
_TAIL: tuple[Stage, ...] = ("decode", "write")


@dataclass(frozen=True, slots=True)
class Cell:
    """A section at its place in the video.

    Attributes:
        number: Its number in the order in which sections are made, from 1.
        words: What it shows, if the words change within the video.
    """

    number: int
    begin: float
    end: float
    state: CellState
    thumbnail: str | None
    words: str


@dataclass
class LiveJob:
    """A job as its events so far describe it; `apply` takes them in order, from the first.

    Attributes:
        job: A snapshot from the store, which may be replaced by a newer one. Its state changes before the
            final event is read.
        width, height: The video's sides in pixels; 0 while they are unknown.
        kept: The number of sections that a branch has from another job; the last one is decoded again.
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
    words: Mapping[int, str] = field(init=False)
    kept: int = field(init=False)
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
    thumbnails: dict[int, str] = field(default_factory=dict[int, str])
    stages: dict[Stage | None, float] = field(default_factory=dict[Stage | None, float])
    end: events.Finished | events.Cancelled | events.Failed | None = None
    _stage_began: float = 0.0
    _tail_began: float = 0.0
    _mark: float = 0.0
    _each: float = 0.0  # seconds
    _rest: float = 1.0  # the share of the whole work that is left, and that of the section's work
    _section_rest: float = 1.0

    def __post_init__(self) -> None:
        self.words, self.kept = section_words(self.job)
        request, info = self.job.request, info_of(self.job.request.model)
        self.plan, steps = plan_of(request), steps_of(request, info)
        self._each = info.family.section_seconds
        self.timing = Timing(self.plan, steps, request.vae_chunk, request.step_cache != OFF)
        self._foresee()

    def apply(self, event: Event) -> None:
        """Update the state with the next event. One that only a damaged log can have is passed over."""
        section: int | None = getattr(event, "section", None)
        if section is not None and not 1 <= section <= self.sections:
            return
        before = self._place
        if isinstance(event, events.JobStarted):
            self.width, self.height = event.width, event.height
            self._begin_again(event.time)
            self._foresee()
        elif isinstance(event, events.StageStarted):
            self._begin(event)
        elif isinstance(event, events.Reading):
            is_over = event.done_bytes >= event.total_bytes
            self.reading = None if is_over else (event.done_bytes, event.total_bytes)
        elif isinstance(event, events.StepDone):
            self._step(event)
        elif isinstance(event, events.PieceDone):
            self._piece(event)
        elif isinstance(event, events.SectionFinished):
            self._finish_section(event)
        elif isinstance(event, events.Warned):
            self.warnings.append(event.message)
            if event.message in (RESUMED, TAKEN_OVER):
                self._begin_again(event.time)
        elif isinstance(event, events.Finished | events.Cancelled | events.Failed):
            self._add_stage(event.time)
            self.end, self.preview = event, None
            if event.video is not None:
                self.video, self.video_frames = event.video, event.frames
        if isinstance(event, events.StepDone | events.PieceDone | events.SectionFinished):
            self._advance(before)
        self.last_sign = event.time

    def _foresee(self) -> None:
        """Estimate the whole job from the machine's pace as soon as the video's size is known."""
        if self.pace is not None and self.width and self.timing.start_up is None:
            request = self.job.request
            pixels = self.width * self.height
            work = Effort(self.plan, self.timing.steps, pixels, request.cfg, request.vae_chunk)
            self.timing.foresee(self.pace, work)

    def _begin_again(self, time: float) -> None:
        """Forget the work at which an earlier run was interrupted; the next engine has yet to begin any."""
        self._add_stage(time)
        self.stage, self.reading, self.preview, self.end, self.expected = None, None, None, None, 0.0
        self.section, self.step, self.piece, self.pieces = self.sections_done, 0, 0, 0
        self._section_rest = 1.0
        self._mark = self._tail_began = time

    def _add_stage(self, time: float) -> None:
        self.stages[self.stage] = self.stages.get(self.stage, 0.0) + max(0.0, time - self._stage_began)
        self._stage_began = time

    def _begin(self, event: events.StageStarted) -> None:
        self._add_stage(event.time)
        self.stage, self.reading, self.expected = event.stage, None, event.expected_seconds
        self.video_due = event.time + event.seconds_to_video if event.seconds_to_video else self.video_due
        if event.stage != "write":
            self.piece = self.pieces = 0
        if event.section is not None and event.section != self.section:
            self.section, self.step = event.section, 0
        if event.stage == "sample":
            self._mark = event.time
            self.timing.expected_step = event.expected_seconds / self.steps
            self.timing.expected_tail = max(0.0, event.seconds_to_video - event.expected_seconds)
        elif event.stage == "decode":  # what was tried since the last step is not part of the tail
            self._tail_began = event.time

    def _step(self, event: events.StepDone) -> None:
        self.section, self.step = event.section, event.step
        event.place(self.timing.steps)
        self.timing.step_took(event.time - self._mark, is_first=event.step == 1)
        self.preview = event.preview or self.preview
        self._mark = self._tail_began = event.time

    def _piece(self, event: events.PieceDone) -> None:
        self.piece, self.pieces = event.piece, event.pieces
        if self.in_tail:
            self.timing.part_of_tail_took(event.time - self._tail_began, self.section, self.tail_share)
            self._mark = event.time

    def _finish_section(self, event: events.SectionFinished) -> None:
        if self.stage in _TAIL:
            self.timing.tail_took(event.time - self._tail_began, event.section)
        self._add_stage(event.time)
        self.section = self.sections_done = event.section
        if self.video is not None:
            self.seconds_in_front += event.added_in_front / self.plan.fps
        self.video, self.video_frames, self.preview = event.video, event.frames, None
        if event.thumbnail is not None:
            self.thumbnails[event.section] = event.thumbnail

    @property
    def sections(self) -> int:
        return len(self.plan)

    @property
    def sections_made(self) -> int:
        return max(self.sections_done, self.kept)

    @property
    def steps(self) -> int:
        return self.timing.steps[max(0, self.section - 1)]

    @property
    def in_section(self) -> bool:
        """Return whether a section is being made, rather than what precedes the first one of each run."""
        return self.section > 0 and self.stage in ("sample", *_TAIL)

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
        """Return the sections in order of the video: all, or those that were made before the job ended."""
        found: list[Cell] = []
        # From words alone, the first section lacks the frames of a picture.
        missing = max(0.0, len(self.plan) * self._each - self.plan.seconds)
        for section in sorted(self.plan, key=lambda section: section.video_position):
            number, place = section.number, section.video_position
            state: CellState = "waiting"
            if number == self.section > self.sections_done and self.job.state in BEGUN:
                state = "running"
            elif number <= self.sections_made:
                state = "done"
            elif self.job.is_over and self.sections_made:
                continue
            begin, end = (max(0.0, one * self._each - missing) for one in (place, place + 1))
            end = self.plan.seconds if place == len(self.plan) - 1 else end
            thumbnail, words = self.thumbnails.get(number), self.words.get(number, "")
            found.append(Cell(number, begin, end, state, thumbnail, words))
        return found

    @property
    def hidden_in_front(self) -> float:
        """Return the seconds of the finished video before the part that can be watched now."""
        if self.job.request.mode == "forward" or not self.video_frames:
            return 0.0
        # The section that closes a loop comes last, behind the others.
        closing = self.plan[-1].final_frames if self.plan[-1].is_closing else 0
        return max(0, self.plan.total_frames - closing - self.video_frames) / self.plan.fps

    @property
    def percent(self) -> float:
        """Return the share of the whole work that is done, 0 to 100; it never falls while a job runs."""
        return 100.0 if self.job.state == "finished" else min(99.0, 100.0 * (1.0 - self._rest))

    @property
    def section_percent(self) -> float:
        """Return the share of the current section that is done, 0 to 100; it never falls."""
        return 100.0 * (1.0 - self._section_rest)

    @property
    def _place(self) -> TimelinePoint:
        if self.section == self.sections_done:
            return TimelinePoint(self.section + 1)
        return TimelinePoint(self.section, self.steps if self.in_tail else self.step, self.tail_share)

    def _advance(self, before: TimelinePoint) -> None:
        """Move both shares from a place to the present one.

        A share that was shown stays when the estimate changes; only the rest is divided anew.
        """
        now, timing = self._place, self.timing
        if max(now.section, before.section) > self.sections:
            self._rest = self._section_rest = 0.0
            return
        self._rest *= _ratio(timing.rest(now), timing.rest(before))
        if now.section != before.section:
            self._section_rest, before = 1.0, TimelinePoint(now.section)
        self._section_rest *= _ratio(timing.rest_of(now), timing.rest_of(before))

    @property
    def is_guess(self) -> bool:
        """Return whether the time left is a guess, because no decode has been measured yet."""
        return self.section > 0 and not self.timing.has_tail

    def stage_seconds(self, elapsed: float) -> float:
        """Return for how long the stage has been going on, `elapsed` seconds after the job began."""
        return max(0.0, elapsed - self._stage_began)

    def seconds_to_video(self, elapsed: float) -> float | None:
        """Estimate the time to the first section that can be watched; None if unknown, or if there is one."""
        if self.sections_made or self.job.is_over:
            return None
        if (left := self.seconds_left(elapsed)) is not None:
            return left - self.timing.total(2)
        return None if self.video_due is None else max(0.0, self.video_due - elapsed)

    def seconds_left(self, elapsed: float) -> float | None:
        """Estimate the rest of the job, `elapsed` seconds after it began; None while nothing is known."""
        timing = self.timing
        if self.job.is_over:
            return None
        if not self.section:
            if timing.start_up is None:
                return None
            return max(0.0, timing.start_up - elapsed) + timing.total()
        if timing.step is None:
            return None
        since = elapsed - self._mark
        if self.in_tail:
            rest = timing.rest_of_tail(self.section, elapsed - self._tail_began, self.tail_share, since)
            return rest + timing.total(self.section + 1)
        if self.section > self.sections_done:
            rest = timing.rest_of_steps(self.section, self.step, since) + timing.tail(self.section)
            if self.stage != "sample":  # such as the choice of convolutions before the first decode
                rest += max(0.0, self.expected - self.stage_seconds(elapsed))
            return rest + timing.total(self.section + 1)
        if self.section == self.sections:
            return 0.0
        coming = self.section + 1
        rest = timing.rest_of_steps(coming, 0, elapsed - self.last_sign) + timing.tail(coming)
        return rest + timing.total(coming + 1)


def _ratio(now: float, before: float) -> float:
    return min(1.0, now / before) if before > 0 else 0.0

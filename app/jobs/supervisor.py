"""Has the engine make a job, watches it, and starts it again where it ended when it dies or hangs.

What the engine dies of on Radeons cannot be caught inside it: HSA and MIOpen abort the process, a kernel
search may never return. Whatever was finished is on the disk, so a new engine goes on with the section that
was being made, with the same settings, and the video gets the same bytes.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.jobs.engine_client import Engine, EngineDied, Trial
from app.jobs.job import Job
from app.jobs.patience import Patience, has_kernels
from diffusers_helper.events import (
    Event,
    Finished,
    JobStarted,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.output.job_folder import JobFolder

_log = logging.getLogger(__name__)

# Deaths of the engine's own doing since the last finished section, and deaths at the very same point by a
# kill from outside, which says nothing about the work.
_MOST_DEATHS, _MOST_KILLS, _MOST_EARLY_KILLS = 3, 5, 25
# Each of these takes one way of computing one convolution out of the game for good.
_MOST_CHARGED = 12
_CANCEL_SECONDS = 30.0  # for a cancelled engine to end by itself, if a step does not take longer
_NOTICE_SECONDS = 60.0
_POLITE = (-signal.SIGTERM, -signal.SIGHUP)
_SIGNAL_SECONDS = 0.5
_COMPILING = (
    "MIOpen is compiling kernels, first run only: this can take many minutes without a sign of life. "
    "Later runs start at once."
)
_VMSTAT = Path("/proc/vmstat")
_DOING = {
    "load": "loading the model",
    "text": "encoding the prompt",
    "image": "preparing the picture",
    "vae_encode": "encoding the picture",
    "vision": "looking at the picture",
    "sample": "denoising",
    "decode": "decoding",
    "write": "writing the video",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a job an engine is: its last sign of life."""

    stage: str = ""
    section: int | None = None
    step: int = 0

    @property
    def words(self) -> str:
        if not self.stage:
            return "while it was starting"
        of = f" section {self.section}" if self.section else ""
        return f"while {_DOING.get(self.stage, self.stage)}{of}"


@dataclass(frozen=True, slots=True)
class Death:
    """One end of an engine before its job's.

    Attributes:
        from_outside: a kill that says nothing about the work.
        trial: the convolution that was being computed in a way that was never tried for it before.
    """

    place: Place
    cause: str
    from_outside: bool
    trial: Trial | None = None


class Supervisor:
    """Makes jobs with one engine.

    Args:
        patience: how long the engine may be silent.
        compiles: whether a first run may be silent because kernels are compiled, as on ROCm.
    """

    def __init__(self, engine: Engine, patience: Patience, *, compiles: bool = False) -> None:
        self._engine, self._patience, self._compiles = engine, patience, compiles

    def make(
        self, job: Job, asked_to_end: Callable[[float], bool], before: Sequence[Event] = ()
    ) -> Iterator[Event]:
        """The job's events, as if one engine had made it, with a warning at each new start.

        Args:
            asked_to_end: whether a person, or the end of the program, wants the job to end, or does so
                within as many seconds as it is given.
            before: what the job has said in an earlier process, if it goes on from there.

        Raises:
            EngineDied: if it cannot be made, or was asked to end and the engine died of that.
        """
        run = _Run(job, self._engine, self._patience, asked_to_end, self._compiles)
        run.recall(before)
        deaths: list[Death] = []
        while True:
            try:
                for event in run.attempt(resume=bool(before or deaths)):
                    if isinstance(event, Finished):  # any other end has no time to lose
                        self._patience.save()
                    yield event
            except EngineDied as died:
                # Sent to a whole process group, a signal reaches the engine a moment before our own handler.
                wait = _SIGNAL_SECONDS if died.exit_code in _POLITE else 0.0
                if asked_to_end(wait) or not self._engine.restarts:
                    raise
                death = Death(run.place, run.cause_of(died), run.is_from_outside(died), died.trial)
                _log.warning("the engine %s %s", death.cause, death.place.words)
                deaths = [*deaths, death] if not run.advanced else [death]
                run.charge(deaths)
                if _is_hopeless(deaths):
                    raise EngineDied(died.exit_code, lessons=_lessons(deaths)) from died
                yield run.warning(death)
            else:
                return


class _Run:
    """One job over all its attempts."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        patience: Patience,
        asked_to_end: Callable[[float], bool],
        compiles: bool,
    ) -> None:
        self._job, self._engine, self._patience = job, engine, patience
        self._asked_to_end, self._compiles = asked_to_end, compiles
        self._is_first = compiles and not has_kernels(Path.home())
        self._started: JobStarted | None = None
        self._shown: SectionFinished | None = None
        self._said: set[str] = set()
        self._deadly: dict[Trial, str] = {}
        self._hung: str = ""
        self._last, self._asked = 0.0, 0.0
        self._kills_before = 0
        self.place = Place()
        self.advanced = False  # whether the last attempt finished a section

    def recall(self, before: Sequence[Event]) -> None:
        """Takes note of what readers know already."""
        for event in before:
            self._fresh(event, False)

    def attempt(self, *, resume: bool) -> Iterator[Event]:
        """One engine's work on the job: what it says and others have not said."""
        self.place, self.advanced, self._hung = Place(), False, ""
        self._kills_before = _memory_kills()
        if resume:
            JobFolder(self._job.folder).remove_leftovers()  # of the engine that died
        self._last = time.monotonic()
        for event in self._engine.run(self._job, resume=resume, deadly=self._deadly):
            now = time.monotonic()
            if event is None:
                yield from self._wait(now - self._last, now)
                continue
            self._learn(now - self._last)
            self._last = now
            self._move(event)
            if (fresh := self._fresh(event, resume)) is not None:
                yield fresh

    def _kind(self) -> str:
        size = f"{self._started.width}x{self._started.height}" if self._started else ""
        return f"{self._job.request.model} {self.place.stage or 'load'} {size}".strip()

    def _learn(self, seconds: float) -> None:
        if self.place.stage:
            self._patience.learn(self._kind(), seconds)

    def _wait(self, silence: float, now: float) -> Iterator[Event]:
        """Nothing has come for `silence` seconds: says why, or ends the engine."""
        kind, loading = self._kind(), self.place.stage in ("", "load")
        if self._asked_to_end(0.0):
            self._asked = self._asked or now
            usual = self._patience.limit(kind) if self._patience.knows(kind) else 0.0
            if now - self._asked > max(_CANCEL_SECONDS, usual):
                self._engine.kill()
            return
        is_new = self._is_first or not self._patience.knows(kind)
        limit = self._patience.limit(kind, load=loading)
        if self._is_first:
            limit = max(limit, self._patience.first)
        if self._engine.restarts and silence > limit and not self._hung:
            self._hung = f"gave no sign of life for {_duration(silence)}"
            self._engine.kill()
        first = self._compiles and not loading and is_new
        if first and silence > _NOTICE_SECONDS and _COMPILING not in self._said:
            self._said.add(_COMPILING)
            yield Warned(job=self._job.id, time=0.0, message=_COMPILING)

    def _move(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            self.place = Place(event.stage, event.section)
        elif isinstance(event, StepDone):
            self.place = Place("sample", event.section, event.step)

    def _fresh(self, event: Event, resumed: bool) -> Event | None:
        """The event as a reader of the whole job should see it; None for what was said before."""
        if isinstance(event, JobStarted):
            first, self._started = self._started is None, event
            return event if first else None
        if isinstance(event, Warned):
            first = event.message not in self._said
            self._said.add(event.message)
            return event if first else None
        if isinstance(event, SectionFinished):
            shown = self._shown
            if shown is not None and event.section <= shown.section:
                return None
            self.advanced = True
            self._shown = event
            if resumed and self._job.request.mode == "inverted":
                # The new engine does not know what the one before it had shown.
                return replace(event, added_in_front=event.frames - shown.frames if shown else 0)
        return event

    def cause_of(self, died: EngineDied) -> str:
        if self._hung:
            return self._hung
        if _memory_kills() > self._kills_before and died.exit_code == -signal.SIGKILL:
            return "was ended by the system because the computer's memory was full"
        return died.cause

    def is_from_outside(self, died: EngineDied) -> bool:
        """Whether someone else ended it: a kill that neither we nor the kernel's memory killer sent."""
        memory = _memory_kills() > self._kills_before
        return died.exit_code == -signal.SIGKILL and not self._hung and not memory

    def charge(self, deaths: list[Death]) -> None:
        """Has a convolution computed another way from now on if it was to blame for the last death."""
        if (trial := deaths[-1].trial) is not None and _is_charged(deaths, len(deaths) - 1):
            self._deadly[trial] = f"the engine {deaths[-1].cause}"

    def warning(self, death: Death) -> Warned:
        # What was encoded before the first section is kept, too.
        begun = self._shown.section + 1 if self._shown else death.place.section
        section = f" section {begun}" if begun else " the beginning"
        message = (
            f"The engine, the process that makes the video, {death.cause} {death.place.words}. "
            f"It was started again and goes on from{section}; nothing that was finished is lost."
        )
        if death.trial in self._deadly:
            message += " It was trying a convolution, which is computed another way on this card from now on."
        return Warned(job=self._job.id, time=0.0, message=message)


def _is_charged(deaths: list[Death], index: int) -> bool:
    """Whether a convolution is to blame. A kill from outside is no proof; a second one there is."""
    death = deaths[index]
    again = index > 0 and deaths[index - 1].trial == death.trial
    return death.trial is not None and (not death.from_outside or again)


def _is_hopeless(deaths: list[Death]) -> bool:
    """`deaths` since a section was finished. One that a convolution is charged with leaves another way."""
    charged = [_is_charged(deaths, index) for index in range(len(deaths))]
    own = [d for d, is_charged in zip(deaths, charged, strict=True) if not d.from_outside and not is_charged]
    if len(own) >= _MOST_DEATHS or sum(charged) >= _MOST_CHARGED:
        return True
    last = deaths[-1].place
    most = _MOST_KILLS if last.section else _MOST_EARLY_KILLS
    same = 0
    for death in reversed(deaths):
        if death.place != last or not death.from_outside:
            break
        same += 1
    return same >= most


def _lessons(deaths: list[Death]) -> str:
    return "\n".join(f"Attempt {n}: it {d.cause} {d.place.words}." for n, d in enumerate(deaths, 1))


def _memory_kills() -> int:
    """Processes that the kernel has ended for lack of memory since it started; 0 where it does not say."""
    try:
        lines = _VMSTAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"

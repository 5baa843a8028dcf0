"""The supervisor, which has the engine make a job, watches it, and restarts it when it dies or hangs.

The causes of death on Radeons cannot be caught inside the engine: HSA and MIOpen abort the process, and a
kernel search may never return. Finished work is on the disk, so a new engine continues with the interrupted
section and the same settings, and the video gets the same bytes.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied, EngineProcess, Trial
from app.jobs.making.watchdog import WatchdogTimeouts, has_kernels
from app.jobs.storage.commands import salvage
from app.jobs.storage.logs import change_by
from diffusers_helper import events
from diffusers_helper.attention.backends import COMPILED
from diffusers_helper.events import STAGES, TRIALS, Event, Failed, JobStarted, SectionFinished, Warned
from diffusers_helper.failures import cause_of_death, engine_died, failed_event
from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.library_errors import last_trouble
from diffusers_helper.machine.signals import SIGHUP, SIGKILL, SIGTERM
from diffusers_helper.planning.out_of_memory import OutOfDeviceMemory, read_out_of_memory
from diffusers_helper.provenance.job_folder import CrashRecord, JobFolder
from diffusers_helper.units import duration

_log = logging.getLogger(__name__)

# The numbers of deaths since the last finished section after which a job fails: deaths that the engine caused
# itself; kills from outside at the same point, which say nothing about the work; the same before any section.
_MOST_DEATHS, _MOST_KILLS, _MOST_EARLY_KILLS = 3, 5, 25
# The number of deaths charged to convolution backends after which a job fails. After three, a backend at
# fault is avoided everywhere, so each further death needs another faulty backend.
_MOST_CHARGED = 7
# The number of characters of an engine's standard error that a message quotes, and that a job's folder keeps.
_MOST_WORDS, _MOST_ERRORS, _MOST_DETAIL = 200, 65_536, 4000
_CANCEL_SECONDS = 30.0  # the time for a cancelled engine to end by itself, unless a step takes longer
_NOTICE_SECONDS = 60.0
_POLITE = (-SIGTERM, -SIGHUP)
_SIGNAL_SECONDS = 0.5
_COMPILING = (
    "The card's kernels are being searched or compiled, which happens once. It can take many minutes "
    "without a sign of life."
)
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True)
class StagePoint:
    stage: str = ""
    section: int | None = None
    step: int = 0

    @property
    def activity(self) -> str:
        if not self.stage:
            return "it was starting"
        running = STAGES[self.stage].running
        return f"{running} section {self.section}" if self.section else running


@dataclass(frozen=True, slots=True)
class Death:
    """The end of an engine before the end of its job.

    Attributes:
        from_outside: Whether the cause was a kill from outside, which says nothing about the work.
        trial: The convolution that was being computed by an untried backend.
        memory_error: The driver's error text if it ended the engine for lack of the device's memory; else "".
        is_charged: Whether the trial is to blame. A single kill from outside is no proof of that.
    """

    point: StagePoint
    cause: str
    from_outside: bool
    trial: Trial | None = None
    memory_error: str = ""
    is_charged: bool = False


class Supervisor:
    """The supervision of one job over all attempts to make it.

    Args:
        asked_to_end: A function that waits for up to the given seconds and returns whether the job was asked
            to end, by a user or by the end of the program.
        compiles: Whether a first run may be silent because kernels are being compiled, as on ROCm.
    """

    def __init__(
        self,
        job: Job,
        engine: EngineProcess,
        timeouts: WatchdogTimeouts,
        asked_to_end: Callable[[float], bool],
        *,
        compiles: bool = False,
    ) -> None:
        self._job = job
        self._engine = engine
        self._card = engine.card
        self._timeouts = timeouts
        self._asked_to_end, self._compiles = asked_to_end, compiles
        self._is_first = compiles and not has_kernels(Path(os.path.expanduser("~")))
        self._started: JobStarted | None = None
        self._last_shown: SectionFinished | None = None
        self._reported: set[str] = set()
        self._blocklist: dict[Trial, str] = {}
        self._hung: str = ""
        self._last_time = 0.0
        self._asked_time = 0.0
        self._kills_before = 0
        self._point = StagePoint()
        self._advanced = False  # whether the last attempt left a result that need not be computed again

    def make(self, earlier_events: Sequence[Event] = ()) -> Iterator[Event]:
        for event in earlier_events:
            self._new_event(event)
        deaths: list[Death] = []
        while True:
            try:
                for event in self._attempt():
                    if isinstance(event, events.Finished):  # after any other end there is no time to save
                        self._timeouts.save()
                    yield event
            except EngineDied as died:
                # A signal to the whole process group reaches the engine just before this process's handler.
                if self._asked_to_end(_SIGNAL_SECONDS if died.exit_code in _POLITE else 0.0):
                    raise
                death = self._death_of(died)
                again = death.trial in [earlier.trial for earlier in deaths[-1:]] and not self._advanced
                death = replace(death, is_charged=bool(death.trial) and (again or not death.from_outside))
                _log.warning("the engine %s (%s) while %s", death.cause, died, death.point.activity)
                deaths = [*deaths, death] if not self._advanced else [death]
                if death.trial and death.is_charged:
                    self._blocklist[death.trial] = f"the engine {death.cause}"
                if not self._engine.restarts or _is_hopeless(deaths):
                    yield self._end(died, deaths)
                    return
                self._save_memory(deaths)
                yield self._warning(death)
            else:
                return

    def _attempt(self) -> Iterator[Event]:
        self._point = StagePoint()
        self._advanced = False
        self._hung = ""
        self._kills_before = _memory_kills()
        folder = JobFolder(self._job.folder)
        folder.remove_leftovers()  # a dead engine may have left some
        checkpoints = folder.checkpoints
        self._last_time = time.monotonic()
        try:
            for event in self._engine.run(self._job, blocklist=self._blocklist):
                now = time.monotonic()
                if event is None:
                    yield from self._wait(now - self._last_time, now)
                    continue
                if self._point.stage:
                    self._timeouts.learn(self._kind(), now - self._last_time)
                self._last_time = now
                self._update_point(event)
                if (new_event := self._new_event(event)) is not None:
                    yield new_event
        except EngineDied:
            self._advanced = self._advanced or folder.checkpoints > checkpoints
            raise

    def _kind(self) -> str:
        size = f"{self._started.width}x{self._started.height}" if self._started else ""
        words = [self._job.request.model, self._point.stage or "load", size]
        if self._point.stage == "decode" and self._job.request.vae_precision != "auto":
            words.append(self._job.request.vae_precision)  # old processors compute bf16 much more slowly
        return f"{self._card.in_use}: {' '.join(filter(None, words))}"

    def _wait(self, silence: float, now: float) -> Iterator[Event]:
        kind = self._kind()
        loading = self._point.stage in ("", "load")
        if self._asked_to_end(0.0):
            self._asked_time = self._asked_time or now
            usual = self._timeouts.limit(kind) if self._timeouts.knows(kind) else 0.0
            if now - self._asked_time > max(_CANCEL_SECONDS, usual):
                self._engine.kill()
            return
        compiles = self._started is not None and self._started.kernels == COMPILED
        is_compiling = compiles and self._point.stage == "sample" and not self._point.step
        is_first = self._is_first or is_compiling or self._point.stage in TRIALS
        limit = self._timeouts.limit(kind, load=loading, compiles=is_first)
        if self._engine.restarts and silence > limit and not self._hung:
            self._hung = f"gave no sign of life for {duration(silence)}"
            self._engine.kill()
        first = self._compiles and not loading and (is_first or not self._timeouts.knows(kind))
        if first and silence > _NOTICE_SECONDS and _COMPILING not in self._reported:
            self._reported.add(_COMPILING)
            yield Warned(job=self._job.id, time=0.0, message=_COMPILING)

    def _update_point(self, event: Event) -> None:
        if isinstance(event, JobStarted):  # kernels for attention are tried before
            self._point = StagePoint()
        elif isinstance(event, events.StageStarted):
            self._point = StagePoint(event.stage, event.section)
        elif isinstance(event, events.StepDone):
            self._point = StagePoint(self._point.stage or "sample", event.section, event.step)

    def _new_event(self, event: Event) -> Event | None:
        """Make the event one of the whole job, over all attempts; None for a repetition."""
        if isinstance(event, JobStarted):
            is_first = self._started is None
            self._started = event
            return event if is_first else None
        if isinstance(event, Warned):
            is_first = event.message not in self._reported
            self._reported.add(event.message)
            return event if is_first else None
        if isinstance(event, SectionFinished):
            last_shown = self._last_shown
            if last_shown is not None and event.section <= last_shown.section:
                return None
            self._advanced = True
            self._last_shown = event
            if self._job.request.mode == "inverted":
                # The new engine does not know how many frames the earlier one had shown.
                return replace(event, added_in_front=event.frames - last_shown.frames if last_shown else 0)
        return event

    def _death_of(self, died: EngineDied) -> Death:
        killed = died.exit_code == -SIGKILL
        cause = cause_of_death(died.exit_code)
        trial = died.trial
        memory_error = ""
        if died.errors:
            file = JobFolder(self._job.folder).engine_errors
            try:
                earlier = read_file(file).decode("utf-8", "replace") if file.exists() else ""
                write_atomic(file, f"{earlier}{died.errors}\n"[-_MOST_ERRORS:].encode("utf-8", "replace"))
            except OSError as error:
                _log.warning("%s cannot be written (%s)", file, error.strerror)
        trouble, line = last_trouble(died.errors) or (None, "")
        if self._hung:
            cause = self._hung
        elif killed and _memory_kills() > self._kills_before:
            cause = "was ended by the system because the computer's memory was full"
        elif killed or trouble is None:
            return Death(self._point, cause, killed, trial)
        else:
            cause = f"{cause} after the words “{line[:_MOST_WORDS]}”"
            if trouble == "device_memory":  # no fault of the convolution backend
                trial, memory_error = None, line
        return Death(self._point, cause, False, trial, memory_error)

    def _save_memory(self, deaths: list[Death]) -> None:
        """Make the next engine use the smallest plan after a second death in one stage for lack of memory."""
        last = deaths[-1]
        stage = last.point.stage
        repeated = [death for death in deaths if death.point.stage == stage and death.memory_error]
        file = JobFolder(self._job.folder).crash_record
        if last.memory_error and len(repeated) > 1 and not file.exists():
            CrashRecord(stage, last.memory_error).write(file)

    def _warning(self, death: Death) -> Warned:
        # The encodings that precede the first section are kept too.
        number = self._last_shown.section + 1 if self._last_shown else death.point.section
        section = f" section {number}" if number else " the beginning"
        message = (
            f"The engine, the process that makes the video, {death.cause} while {death.point.activity}. "
            f"It was restarted from{section}; no finished work was lost."
        )
        if death.trial in self._blocklist:
            message += (
                " It was trying a convolution, which from now on is computed another way on this card; "
                "pixels differ by rounding."
            )
        return Warned(job=self._job.id, time=0.0, message=message)

    def _end(self, died: EngineDied, deaths: list[Death]) -> Failed:
        folder = JobFolder(self._job.folder)
        memory_error = deaths[-1].memory_error
        attempts = (
            f"Attempt {number}: it {death.cause} while {death.point.activity}."
            for number, death in enumerate(deaths, 1)
        )
        detail = (*attempts, f"engine exit code {died.exit_code}", died.errors[-_MOST_DETAIL:])
        error = engine_died(died.exit_code, len(deaths), died.errors)
        if memory_error:
            crash = CrashRecord.read(folder.crash_record)
            error = OutOfDeviceMemory(
                read_out_of_memory(memory_error),
                smaller_plans=1 if crash and crash.change else 0,
                is_apu=self._card.profile.machine.is_apu,
            )
        _, facts = (change_by(self._last_shown, folder.path) if self._last_shown else None) or (None, {})
        arguments = self._job.id, 0.0, *salvage(folder, facts.get("video"), facts.get("frames", 0))
        return failed_event(error, *arguments, detail="\n".join(filter(None, detail)))


def _is_hopeless(deaths: list[Death]) -> bool:
    """Whether to give up after these deaths since the last finished section.

    One that is charged to a convolution backend counts less, since another backend is left.
    """
    own_deaths = sum(not (death.from_outside or death.is_charged) for death in deaths)
    if own_deaths >= _MOST_DEATHS or sum(death.is_charged for death in deaths) >= _MOST_CHARGED:
        return True
    last = deaths[-1].point
    kills = takewhile(lambda death: death.point == last and death.from_outside, reversed(deaths))
    return len(list(kills)) >= (_MOST_KILLS if last.section else _MOST_EARLY_KILLS)


def _memory_kills() -> int:
    try:
        lines = _VMSTAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

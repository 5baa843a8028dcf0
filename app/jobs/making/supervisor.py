"""The supervisor, which has the engine make a job, watches it, and restarts it when it dies or hangs.

The causes of death on Radeons cannot be caught inside the engine: HSA and MIOpen abort the process, and a
kernel search may never return. Finished work is on the disk, so a new engine continues with the interrupted
section and the same settings, and the video gets the same bytes.
"""

from __future__ import annotations

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
from app.jobs.storage.logs import change_by
from app.jobs.storage.recovery import salvage
from diffusers_helper.events import (
    STAGES,
    TRIALS,
    Event,
    Failed,
    Finished,
    JobStarted,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
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
# The number of deaths charged to ways of computing convolutions after which a job fails. After three, a way
# at fault is avoided everywhere, so each further death needs another faulty way.
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
    """The point in a job that an engine had reached at its last sign of life."""

    stage: str = ""
    section: int | None = None
    step: int = 0

    @property
    def words(self) -> str:
        if not self.stage:
            return "while it was starting"
        of = f" section {self.section}" if self.section else ""
        return f"while {STAGES[self.stage].running}{of}"


@dataclass(frozen=True, slots=True)
class Death:
    """The end of an engine before the end of its job.

    Attributes:
        from_outside: Whether the cause was a kill from outside, which says nothing about the work.
        trial: The convolution that was being computed in an untried way.
        shortage: The driver's error text if it ended the engine for lack of the device's memory; else "".
    """

    place: StagePoint
    cause: str
    from_outside: bool
    trial: Trial | None = None
    shortage: str = ""


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
        self._job, self._engine, self._card, self._timeouts = job, engine, engine.card, timeouts
        self._asked_to_end, self._compiles = asked_to_end, compiles
        self._is_first = compiles and not has_kernels(Path(os.path.expanduser("~")))
        self._started: JobStarted | None = None
        self._shown: SectionFinished | None = None
        self._reported: set[str] = set()
        self._blocklist: dict[Trial, str] = {}
        self._hung: str = ""
        self._last, self._asked = 0.0, 0.0
        self._kills_before = 0
        self._place = StagePoint()
        self._advanced = False  # whether the last attempt left a result that need not be computed again

    def make(self, before: Sequence[Event] = ()) -> Iterator[Event]:
        """Yield the job's events as if one engine had made it, and a warning at each restart.

        Args:
            before: The events of the job's earlier runs, which readers know, if it continues.

        Raises:
            EngineDied: If the engine died after the job was asked to end.
        """
        for event in before:
            self._fresh(event)
        deaths: list[Death] = []
        while True:
            try:
                for event in self._attempt():
                    if isinstance(event, Finished):  # after any other end there is no time to save
                        self._timeouts.save()
                    yield event
            except EngineDied as died:
                # A signal to the whole process group reaches the engine just before this process's handler.
                if self._asked_to_end(_SIGNAL_SECONDS if died.exit_code in _POLITE else 0.0):
                    raise
                death = self._death_of(died)
                _log.warning("the engine %s (%s) %s", death.cause, died, death.place.words)
                deaths = [*deaths, death] if not self._advanced else [death]
                self._charge(deaths)
                if not self._engine.restarts or _is_hopeless(deaths):
                    yield self._end(died, deaths)
                    return
                self._save_memory(deaths)
                yield self._warning(death)
            else:
                return

    def _attempt(self) -> Iterator[Event]:
        self._place, self._advanced, self._hung = StagePoint(), False, ""
        self._kills_before = _memory_kills()
        folder = JobFolder(self._job.folder)
        folder.remove_leftovers()  # a dead engine may have left some
        checkpoints = folder.checkpoints
        self._last = time.monotonic()
        try:
            for event in self._engine.run(self._job, blocklist=self._blocklist):
                now = time.monotonic()
                if event is None:
                    yield from self._wait(now - self._last, now)
                    continue
                if self._place.stage:
                    self._timeouts.learn(self._kind(), now - self._last)
                self._last = now
                self._move(event)
                if (fresh := self._fresh(event)) is not None:
                    yield fresh
        except EngineDied:
            self._advanced = self._advanced or folder.checkpoints > checkpoints
            raise

    def _kind(self) -> str:
        size = f"{self._started.width}x{self._started.height}" if self._started else ""
        work = f"{self._job.request.model} {self._place.stage or 'load'} {size}".strip()
        return f"{self._card.in_use}: {work}"

    def _wait(self, silence: float, now: float) -> Iterator[Event]:
        """React to `silence` seconds without a message, with an explanation or by killing the engine."""
        kind, loading = self._kind(), self._place.stage in ("", "load")
        if self._asked_to_end(0.0):
            self._asked = self._asked or now
            usual = self._timeouts.limit(kind) if self._timeouts.knows(kind) else 0.0
            if now - self._asked > max(_CANCEL_SECONDS, usual):
                self._engine.kill()
            return
        is_first = self._is_first or self._place.stage in TRIALS
        limit = self._timeouts.limit(kind, load=loading, compiles=is_first)
        if self._engine.restarts and silence > limit and not self._hung:
            self._hung = f"gave no sign of life for {duration(silence)}"
            self._engine.kill()
        first = self._compiles and not loading and (is_first or not self._timeouts.knows(kind))
        if first and silence > _NOTICE_SECONDS and _COMPILING not in self._reported:
            self._reported.add(_COMPILING)
            yield Warned(job=self._job.id, time=0.0, message=_COMPILING)

    def _move(self, event: Event) -> None:
        if isinstance(event, JobStarted):  # kernels for attention are tried before
            self._place = StagePoint()
        elif isinstance(event, StageStarted):
            self._place = StagePoint(event.stage, event.section)
        elif isinstance(event, StepDone):
            self._place = StagePoint("sample", event.section, event.step)

    def _fresh(self, event: Event) -> Event | None:
        """Return the event as a reader of the whole job should see it; None for a repetition."""
        if isinstance(event, JobStarted):
            first, self._started = self._started is None, event
            return event if first else None
        if isinstance(event, Warned):
            first = event.message not in self._reported
            self._reported.add(event.message)
            return event if first else None
        if isinstance(event, SectionFinished):
            shown = self._shown
            if shown is not None and event.section <= shown.section:
                return None
            self._advanced = True
            self._shown = event
            if self._job.request.mode == "inverted":
                # The new engine does not know how many frames the earlier one had shown.
                return replace(event, added_in_front=event.frames - shown.frames if shown else 0)
        return event

    def _death_of(self, died: EngineDied) -> Death:
        """Return what is known about a death, and keep the end of the engine's standard error."""
        killed, cause = died.exit_code == -SIGKILL, cause_of_death(died.exit_code)
        trial, shortage = died.trial, ""
        if died.errors:
            _keep(died.errors, JobFolder(self._job.folder).engine_errors)
        trouble, words = last_trouble(died.errors) or (None, "")
        if self._hung:
            cause = self._hung
        elif killed and _memory_kills() > self._kills_before:
            cause = "was ended by the system because the computer's memory was full"
        elif killed or trouble is None:
            return Death(self._place, cause, killed, trial)
        else:
            cause = f"{cause} after the words “{words[:_MOST_WORDS]}”"
            if trouble == "device_memory":  # no fault of this way of computing the convolution
                trial, shortage = None, words
        return Death(self._place, cause, False, trial, shortage)

    def _charge(self, deaths: list[Death]) -> None:
        if (trial := deaths[-1].trial) is not None and _is_charged(deaths, len(deaths) - 1):
            self._blocklist[trial] = f"the engine {deaths[-1].cause}"

    def _save_memory(self, deaths: list[Death]) -> None:
        """Make the next engine use the smallest plan after a second death in one stage for lack of memory."""
        last = deaths[-1]
        here = [death for death in deaths if death.place.stage == last.place.stage and death.shortage]
        file = JobFolder(self._job.folder).crash_record
        if last.shortage and len(here) > 1 and not file.exists():
            CrashRecord(last.place.stage, last.shortage).write(file)

    def _warning(self, death: Death) -> Warned:
        # The encodings that precede the first section are kept too.
        begun = self._shown.section + 1 if self._shown else death.place.section
        section = f" section {begun}" if begun else " the beginning"
        message = (
            f"The engine, the process that makes the video, {death.cause} {death.place.words}. "
            f"It was restarted from{section}; no finished work was lost."
        )
        if death.trial in self._blocklist:
            message += (
                " It was trying a convolution, which from now on is computed another way on this card; "
                "pixels differ by rounding."
            )
        return Warned(job=self._job.id, time=0.0, message=message)

    def _end(self, died: EngineDied, deaths: list[Death]) -> Failed:
        folder, shortage = JobFolder(self._job.folder), deaths[-1].shortage
        attempts = (f"Attempt {n}: it {one.cause} {one.place.words}." for n, one in enumerate(deaths, 1))
        detail = (*attempts, f"engine exit code {died.exit_code}", died.errors[-_MOST_DETAIL:])
        error = engine_died(died.exit_code, len(deaths), died.errors)
        if shortage:
            note = CrashRecord.read(folder.crash_record)
            error = OutOfDeviceMemory(
                read_out_of_memory(shortage),
                smaller_plans=1 if note and note.change else 0,
                is_apu=self._card.profile.machine.is_apu,
            )
        _, shown = (change_by(self._shown, folder.path) if self._shown else None) or (None, {})
        where = self._job.id, 0.0, *salvage(folder, shown.get("video"), shown.get("frames", 0))
        return failed_event(error, *where, detail="\n".join(filter(None, detail)))


def _is_charged(deaths: list[Death], index: int) -> bool:
    """Return whether a convolution caused the death. A single kill from outside is no proof of that."""
    death = deaths[index]
    again = index > 0 and deaths[index - 1].trial == death.trial
    return death.trial is not None and (not death.from_outside or again)


def _is_hopeless(deaths: list[Death]) -> bool:
    """Return whether to give up after these deaths since the last finished section.

    A death that is charged to a way of computing a convolution counts less, since another way is left.
    """
    charged = [_is_charged(deaths, index) for index in range(len(deaths))]
    own = [d for d, is_charged in zip(deaths, charged, strict=True) if not d.from_outside and not is_charged]
    if len(own) >= _MOST_DEATHS or sum(charged) >= _MOST_CHARGED:
        return True
    last = deaths[-1].place
    same = takewhile(lambda death: death.place == last and death.from_outside, reversed(deaths))
    return len(list(same)) >= (_MOST_KILLS if last.section else _MOST_EARLY_KILLS)


def _keep(errors: str, file: Path) -> None:
    try:
        before = read_file(file).decode("utf-8", "replace") if file.exists() else ""
        write_atomic(file, f"{before}{errors}\n"[-_MOST_ERRORS:].encode("utf-8", "replace"))
    except OSError as error:
        _log.warning("%s cannot be written (%s)", file, error.strerror)


def _memory_kills() -> int:
    try:
        lines = _VMSTAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

"""The far end of a card of another machine: an actor of Ray that runs the card's engine as a child.

The engine works in a copy of the job's folder, of which only what has changed is carried. See `app.cluster`.
"""

import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied, EngineProcess, Trial
from diffusers_helper import __version__
from diffusers_helper.conditions.pictures import request_content, stored_request
from diffusers_helper.errors import InputError
from diffusers_helper.events import to_dict
from diffusers_helper.files import write_atomic
from diffusers_helper.models.downloads import missing_components
from diffusers_helper.models.registry import built_in_names, find_model
from diffusers_helper.planning.profiles import YOU
from diffusers_helper.provenance.job_folder import JobFolder

LOST_SECONDS = 20.0  # after so long without an answer, the other end counts as gone
_ANSWER_SECONDS = 0.5  # the longest time that an actor waits for something new
_QUEUE_FILES = ("events.jsonl", "states.jsonl")  # of the program that has the queue
Stamps = dict[str, tuple[int, int]]
EngineEnd = tuple[int | None, Trial | None, str]


@dataclass(slots=True)
class Answer:
    """What has happened to a job since an event.

    Attributes:
        events: The events as JSON, with the paths of the actor's machine.
        files: The contents of new and changed files, by their paths in the job's folder.
        death: The exit code, the trial and the errors of the engine that died; None if it has not.
    """

    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    removed: list[str] = field(default_factory=list[str])
    death: EngineEnd | None = None


def changed_files(folder: Path, stamps: Stamps) -> Answer:
    answer, current = Answer(), Stamps()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in _QUEUE_FILES or path.suffix == ".tmp" or not path.is_file():
            continue
        try:
            stat = path.stat()
            current[name] = stat.st_size, stat.st_mtime_ns
            if stamps.get(name) != current[name]:
                answer.files[name] = path.read_bytes()
        except FileNotFoundError:  # it has just been replaced
            continue
    answer.removed = [name for name in stamps if name not in current]
    stamps.clear()
    stamps.update(current)
    return answer


def apply(folder: Path, answer: Answer) -> None:
    for name, content in answer.files.items():
        path = _inside(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    for name in answer.removed:
        _inside(folder, name).unlink(missing_ok=True)


def _inside(folder: Path, name: str) -> Path:
    root = folder.resolve()
    path = (root / name).resolve()
    if root not in path.parents or path in {root / file for file in _QUEUE_FILES}:
        raise InputError(f"Another machine names {name[:60]!r}, which is no file of the job.")
    return path


class Host:
    """The actor beside one card. Ray calls its methods, several at a time."""

    def __init__(self, variables: Mapping[str, str], label: str, machine: str) -> None:
        self._engine, self._machine = EngineProcess(variables=variables), machine
        self._label = f"{label} of {machine}"
        # Resolved, since the engine reports resolved paths, which the other end replaces by its own.
        self._folder = Path(tempfile.mkdtemp(prefix="longtake-")).resolve()
        self._orders: queue.SimpleQueue[tuple[int, str, dict[Trial, str]]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._stamps = Stamps()
        self._run, self._last_heard_at = 0, 0.0
        self._owner, self._is_over = "", False  # an owner has the card until it knows how the run has ended
        self._events: list[dict[str, Any]] = []
        self._death: EngineEnd | None = None
        # The engine ends with the thread that has started it.
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    def facts(self) -> dict[str, Any]:
        card, cap = self._engine.card, self._engine.card.profile.cap_bytes
        return {
            "label": self._label, "facts": asdict(replace(card.profile.machine, link=None)),
            "cap_bytes": cap.value if cap.source == YOU else 0,
            "used_bytes": card.used_bytes or self._engine.used_bytes,
            # A model that a user has added may be another one here, of the same name.
            "models": [name for name in built_in_names() if not missing_components(find_model(name))],
            "machine": self._machine, "version": __version__, "owner": self._holder,
        }  # fmt: skip

    def begin(self, owner: str, job: str, files: Answer, blocklist: dict[Trial, str]) -> tuple[int, str]:
        """Make a job in a copy of its folder. What is made for the same owner meanwhile is given up.

        Returns:
            The number of this run, and the job's folder; 0 and the owner of what is made now, if that is
            another one.
        """
        with self._changed:
            if self._holder not in ("", owner):
                return 0, self._holder
            if self._owner and not self._is_over:
                self._engine.kill()
            self._run, self._owner, self._last_heard_at = self._run + 1, owner, time.monotonic()
            self._events, self._death, self._is_over = [], None, False
            run = self._run
            folder = self._folder / str(self._run) / job
        for leftover in self._folder.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        folder.mkdir(parents=True)
        apply(folder, files)
        self._stamps = Stamps()
        changed_files(folder, self._stamps)
        self._orders.put((run, job, blocklist))
        return run, str(folder)

    def hear(self, run: int) -> None:
        if run == self._run:
            self._last_heard_at = time.monotonic()

    def since(self, run: int, folder: str, number: int) -> Answer:
        """Wait a little if nothing has happened since event `number`."""
        self.hear(run)
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > number or self._death, _ANSWER_SECONDS)
            if run != self._run:
                return Answer(death=(None, None, ""))
            events, death, is_over = self._events[number:], self._death, self._is_over
        answer = changed_files(Path(folder), self._stamps)  # after the events, which come after their files
        answer.events, answer.death = events, death
        self._owner = "" if is_over else self._owner
        return answer

    @property
    def _holder(self) -> str:
        """The owner of the running job; "" if there is none, or if the owner is gone."""
        return self._owner if time.monotonic() - self._last_heard_at < LOST_SECONDS else ""

    def cancel(self, run: int, job: str) -> None:
        if run == self._run:
            self._engine.cancel(job)

    def _work(self) -> None:
        while True:
            run, job, blocklist = self._orders.get()
            folder = JobFolder(self._folder / str(run) / job)
            try:
                request = stored_request(request_content(folder), folder)
                job_to_make = Job(id=job, state="running", request=request, folder=folder.path, created=0.0)
                for event in self._engine.run(job_to_make, blocklist=blocklist):
                    if event is not None:
                        self._add_report(run, to_dict(event), is_last=event.is_final)
                    if not self._holder or run != self._run:
                        self._engine.kill()
            except EngineDied as died_error:
                self._add_report(run, (died_error.exit_code, died_error.trial, died_error.errors))
            except (InputError, OSError, ValueError) as error:
                self._add_report(run, (None, None, str(error)))

    def _add_report(self, run: int, report: dict[str, Any] | EngineEnd, *, is_last: bool = True) -> None:
        with self._changed:
            if run == self._run:
                if isinstance(report, dict):
                    self._events.append(report)
                else:
                    self._death = report
                self._is_over = is_last
                self._changed.notify_all()

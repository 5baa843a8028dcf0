"""The two ends of an engine's pipes: the client that starts it and sends it jobs, and the engine's own end.

Commands go to the engine's stdin, and its events come from its stdout, as lines of JSON.
"""

import json
import logging
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal

from app.cards import VideoCard
from app.jobs.job import Job
from app.jobs.stdio import (
    Child,
    close_child,
    prepare_streams,
    start_log,
    take_stdin,
    take_stdout,
    wait_or_kill,
    write_whole,
)
from app.machine import module_command, this_profile
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Cancelled, Event, from_dict, to_dict
from diffusers_helper.machine.signals import end_with_parent, ignore_ctrl_c, unblock_ending
from diffusers_helper.machine.sysfs import resident_bytes
from diffusers_helper.planning.variables import engine_environment

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The first use of a rung of the fallback ladder for one case of a convolution."""

    case: str
    rung: str


class EngineDied(Exception):
    """The death of an engine before the end of its job, perhaps in a trial."""

    def __init__(self, exit_code: int | None = None, trial: Trial | None = None) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code
        self.trial = trial
        self.errors = ""


# A message of the engine: an event, a trial that begins, "" when that has ended, None when the pipe closes.
Message = Event | Trial | Literal[""] | None


class EngineProcess:
    """An engine in a child process, which is started when first needed, and again after a death.

    It makes one video at a time. When this process ends, the child's stdin closes, and the child ends too. It
    is also killed when the *thread* that started it ends, so the thread that runs the jobs calls `start` and
    `run`.

    Args:
        variables: Further environment variables for the child, such as those that show it one card alone.
        card: Its card, if that is not the one that a process with these variables sees.
    """

    restarts = True  # whether `run` can be called again after a death

    def __init__(
        self,
        command: tuple[str, ...] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        card: VideoCard | None = None,
    ) -> None:
        self._command, self._variables = command, variables
        self._card = card
        self._lock = threading.Lock()  # guards the attributes below and writing to stdin
        self._child: Child | None = None
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()

    @property
    def card(self) -> VideoCard:
        self._card = self._card or VideoCard.from_environment({**os.environ, **self._variables})
        return self._card

    @property
    def used_bytes(self) -> int:
        return resident_bytes(self.pid) if self.pid else 0

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.process.pid

    def start(self) -> None:
        """Start the child if it is not alive. It loads its libraries at once, models with the first job."""
        with self._lock:
            self._start()

    def run(
        self, job: Job, *, blocklist: Mapping[Trial, str] = MappingProxyType({})
    ) -> Iterator[Event | None]:
        """Make one video and yield its events, up to the final one; yield None while nothing happens.

        The trials of `blocklist`, which ended an engine, are not repeated; each has its reason.
        """
        command = {
            "do": "run", "job": job.id, "folder": str(job.folder),
            "blocklist": [{**asdict(trial), "reason": reason} for trial, reason in blocklist.items()],
        }  # fmt: skip
        with self._lock:
            child = self._start()
            events = self._events
            child.errors.forget()
            child.send(command)
        try:
            yield from follow(job.id, events, child.process)
        except EngineDied as died:
            died.errors = child.errors.text()
            raise

    def cancel(self, job_id: str) -> None:
        """Have the engine end a job within a step: `Orders.listen` tells the token that its loop checks."""
        with self._lock:
            if self._child is not None:
                self._child.send({"do": "cancel", "job": job_id})

    def kill(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.process.kill()

    def close(self) -> None:
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                close_child(child.process, _CLOSE_SECONDS)

    def _start(self) -> Child:
        if self._child is not None and self._child.process.poll() is None:
            return self._child
        # The child is in this process's group, so that signals reach both.
        command, environ = module_command("app.engine", {**os.environ, **self._variables})
        environ |= engine_environment(this_profile(environ).environment, environ)
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        self._events = events = queue.SimpleQueue[Message]()
        self._child = Child(
            (*(self._command or command), level), environ, lambda data: events.put(_message(data))
        )
        _log.info("engine started, process %d", self._child.process.pid)
        return self._child


def follow(
    job_id: str, messages: queue.SimpleQueue[Message], process: subprocess.Popen[bytes] | None = None
) -> Iterator[Event | None]:
    trial: Trial | None = None
    while True:
        try:
            message = messages.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            # A process that the engine started may keep the pipe open after the engine is gone.
            message = None
            if process is None or process.poll() is None:
                yield None
                continue
        if message is None:
            # An engine that has closed its pipe may still run, but is useless.
            raise EngineDied(None if process is None else wait_or_kill(process, _CLOSE_SECONDS), trial)
        if not isinstance(message, Event):
            trial = message or None
        elif message.job == job_id:
            yield message
            if message.is_final:
                return


def _message(data: dict[str, Any] | None) -> Message:
    if data is None:
        return None
    if "trial" not in data:
        return from_dict(data)
    return "" if data["trial"] is None else Trial(**data["trial"])


@dataclass(frozen=True, slots=True)
class Order:
    job: str
    folder: Path
    blocklist: list[dict[str, str]]
    cancel: CancelToken = field(default_factory=CancelToken)


class Orders:
    """The client's orders in the engine: a thread hears them, and the working thread takes them."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._next: Order | None = None
        self._current: Order | None = None

    def listen(self, commands: IO[bytes]) -> None:
        """Hear commands until the pipe closes; then end this process, whose files are whole, at once."""
        for line in commands:
            command = json.loads(line)
            with self._changed:
                if command["do"] == "run":
                    self._next = Order(command["job"], Path(command["folder"]), command["blocklist"])
                    self._changed.notify()
                elif self._next is not None and self._next.job == command["job"]:
                    # The working thread may be loading its libraries for seconds, so this thread answers.
                    self._next = None
                    self._send(Cancelled(job=command["job"], time=0.0, video=None, frames=0))
                elif self._current is not None and self._current.job == command["job"]:
                    self._current.cancel.cancel()
        os._exit(0)

    def take(self) -> Order:
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._next)
            assert self._next is not None
            self._current, self._next = self._next, None
            return self._current


class EventPipe:
    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, event: Event) -> None:
        self.write(to_dict(event))

    def name_trial(self, case: object, rung: str) -> None:
        """Announce the first use of a convolution backend, because it may end the process."""
        self.write({"trial": {"case": str(case), "rung": rung}})

    def end_trial(self, case: object, rung: str) -> None:
        self.write({"trial": None})

    def write(self, data: dict[str, Any]) -> None:
        line = json.dumps(data, allow_nan=False).encode() + b"\n"
        try:
            with self._lock:
                write_whole(self._pipe, line)
        except BrokenPipeError:
            os._exit(1)


def open_pipes(log_level: str) -> tuple[Orders, EventPipe]:
    """Begin an engine's process: return its orders, which a thread hears from now on, and its events."""
    ignore_ctrl_c()
    unblock_ending()
    end_with_parent()  # even if native code keeps the listening thread from running
    prepare_streams()
    events = EventPipe(take_stdout())
    orders = Orders(events.send)
    threading.Thread(target=orders.listen, args=(take_stdin(),), name="orders", daemon=True).start()
    start_log(log_level)
    return orders, events

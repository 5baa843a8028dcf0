"""An engine's side of the two pipes to its parent: the orders that come, and the events that go."""

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from app.jobs.stdio import prepare_streams, start_log, take_stdin, take_stdout, write_whole
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Cancelled, Event, to_dict
from diffusers_helper.machine.signals import end_with_parent, ignore_ctrl_c, unblock_ending


@dataclass(frozen=True, slots=True)
class Order:
    job: str
    folder: Path
    blocklist: list[dict[str, str]]
    cancel: CancelToken = field(default_factory=CancelToken)


class Orders:
    """The parent's orders, added by the listening thread and taken by the working thread."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._waiting: deque[Order] = deque()
        self._current: Order | None = None

    def listen(self, commands: IO[bytes]) -> None:
        """Take commands until the parent closes the pipe or ends; then end this process at once.

        That is safe, because files get their final names only when they are complete.
        """
        with contextlib.suppress(OSError):
            for line in commands:
                command = json.loads(line)
                if command["do"] == "run":
                    self._add(Order(command["job"], Path(command["folder"]), command["blocklist"]))
                elif command["do"] == "cancel":
                    self._cancel(command["job"])
        os._exit(0)

    def take(self) -> Order:
        with self._changed:
            self._current = None
            self._changed.wait_for(lambda: self._waiting)
            self._current = self._waiting.popleft()
            return self._current

    def _add(self, order: Order) -> None:
        with self._changed:
            self._waiting.append(order)
            self._changed.notify()

    def _cancel(self, job: str) -> None:
        with self._changed:
            if self._current is not None and self._current.job == job:
                self._current.cancel.cancel()
            for order in [order for order in self._waiting if order.job == job]:
                # The working thread may be loading its libraries for seconds, so this thread answers.
                self._waiting.remove(order)
                self._send(Cancelled(job=job, time=0.0, video=None, frames=0))


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
    """Begin an engine's process: return its orders, which a thread takes from now on, and its events."""
    ignore_ctrl_c()
    unblock_ending()
    end_with_parent()  # even if native code keeps the listening thread from running
    prepare_streams()
    events = EventPipe(take_stdout())
    orders = Orders(events.send)
    threading.Thread(target=orders.listen, args=(take_stdin(),), name="orders", daemon=True).start()
    start_log(log_level)
    return orders, events

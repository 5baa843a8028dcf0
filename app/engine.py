"""The engine, which runs in a process of its own: `python -m app.engine LOG_LEVEL`.

`EngineProcess` starts it. Commands come as JSON lines on stdin, and events go as JSON lines to stdout. The
engine ends when stdin is closed, so it never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from app.jobs.stdio import prepare_streams, start_log, take_stdin, take_stdout
from app.machine import know_added_models, this_local
from app.miopen import conv_settings
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Cancelled, Event, to_dict
from diffusers_helper.failures import failed_event
from diffusers_helper.machine.signals import end_with_parent, ignore_ctrl_c, unblock_ending


@dataclass(frozen=True, slots=True)
class Order:
    """An order to make a job, with the token that cancels it."""

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
        """Wait for the next order and return it."""
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
    """The pipe of events to the parent."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def send(self, event: Event) -> None:
        self._write(to_dict(event))

    def name_trial(self, case: object, rung: str) -> None:
        """Announce the first use of a way to compute a convolution, because it may end the process."""
        self._write({"trial": {"case": str(case), "rung": rung}})

    def end_trial(self, case: object, rung: str) -> None:
        self._write({"trial": None})

    def _write(self, data: dict[str, Any]) -> None:
        line = json.dumps(data, allow_nan=False).encode() + b"\n"
        try:
            with self._lock:
                while line:  # the pipe is unbuffered: a write may take only a part
                    line = line[self._pipe.write(line) :]
        except BrokenPipeError:
            os._exit(1)


def main() -> None:
    """Run the engine until its standard input ends."""
    ignore_ctrl_c()
    unblock_ending()
    end_with_parent()  # even if native code keeps the listening thread from running
    prepare_streams()
    events = EventPipe(take_stdout())
    orders = Orders(events.send)
    threading.Thread(target=orders.listen, args=(take_stdin(),), name="orders", daemon=True).start()
    start_log(sys.argv[1])
    know_added_models()
    gc.disable()  # collections while the libraries are imported take an eighth of that time and find nothing
    try:
        from diffusers_helper.job.card import CardLost
        from diffusers_helper.miopen_fallback import initialize_miopen_fallback
        from diffusers_helper.runner import Runner

        convolutions = initialize_miopen_fallback(
            **conv_settings(), on_first_call=events.name_trial, after_first_call=events.end_trial
        )
        runner = Runner(this_local(os.environ), convolutions)
    except Exception as error:  # noqa: BLE001 - nothing can work here, and every job reports why
        while True:
            order = orders.take()
            events.send(failed_event(error, order.job, 0.0, None, 0))
    gc.freeze()  # the libraries stay, so that a collection need not visit their objects
    gc.enable()
    while True:
        order = orders.take()
        for route in order.blocklist:
            convolutions.block(route["case"], route["rung"], route["reason"])
        try:
            runner.run(order.folder, events.send, order.cancel)
        except CardLost:
            traceback.print_exc()
            os._exit(1)  # the next engine continues; an ordinary end could hang in the driver


if __name__ == "__main__":
    main()

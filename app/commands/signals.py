"""The reactions of a command that follows jobs to Ctrl-C and to the signals that end programs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from diffusers_helper.machine.signals import SIGINT, handle, restore
from diffusers_helper.machine.signals import Signals as Numbers

_KILL_SECONDS = 3.0


class Signals:
    """A context manager that has callbacks react to signals.

    Args:
        cancel: Called in a thread at the first signal if that is Ctrl-C.
        interrupt: Called in a thread at the first signal if that is SIGTERM or SIGHUP, as at a shutdown.
        kill: Called in a thread at a second signal, to end the current job. The process ends soon after,
            even if this does not succeed, and at once at a third signal.

    Attributes:
        number: The first signal; None before it.
    """

    def __init__(
        self, cancel: Callable[[], None], interrupt: Callable[[], None], kill: Callable[[], None]
    ) -> None:
        self._cancel, self._interrupt, self._kill = cancel, interrupt, kill
        self.number: int | None = None
        self._end: threading.Timer | None = None
        self._before: dict[Numbers, object] = {}

    def __enter__(self) -> Signals:
        self._before = handle(self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restore(self._before)
        if self._end is not None:
            self._end.cancel()

    def repeat(self) -> None:
        """React once more to a first signal, which may have come before what it should end had begun."""
        if self.number is not None:
            self._reaction()()

    def _reaction(self) -> Callable[[], None]:
        return self._cancel if self.number == SIGINT else self._interrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._end is not None:
            os._exit(128 + (self.number or number))  # the engine ends with this process
        if self.number is None:
            self.number = number
            act = self._reaction()
        else:
            act = self._kill
            self._end = threading.Timer(_KILL_SECONDS, os._exit, (128 + self.number,))
            self._end.daemon = True
            self._end.start()
        threading.Thread(target=act, name="signal", daemon=True).start()

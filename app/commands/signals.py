"""The reactions of a command to Ctrl-C and to the signals that end programs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HURRY_SECONDS = 3.0


class Signals:
    """A context manager that maps Ctrl-C and termination signals to the callbacks below.

    While `cancel` and `interrupt` are not set, the signals raise KeyboardInterrupt.

    Attributes:
        cancel: Called in a thread at the first Ctrl-C.
        interrupt: Called in a thread at the first SIGTERM or SIGHUP, for example at a shutdown.
        hurry: Called in a thread at a second signal, to end the current job. The process ends soon after,
            even if this does not succeed, and at once at a third signal.
        number: The first signal.
    """

    def __init__(self) -> None:
        self.cancel: Callable[[], None] | None = None
        self.interrupt: Callable[[], None] | None = None
        self.hurry: Callable[[], None] | None = None
        self.number: int | None = None
        self._end: threading.Timer | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in _SIGNALS:
            # Under nohup, a closed terminal is to be ignored. A shell's & makes Ctrl-C ignored, too, but that
            # would leave no way to cancel.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        if self._end is not None:
            self._end.cancel()

    def repeat(self) -> None:
        """Call the callback of the first signal once more, if it came before what it ends had begun."""
        act = self.cancel if self.number == signal.SIGINT else self.interrupt
        if self.number is not None and act is not None:
            act()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        act = self.cancel if number == signal.SIGINT else self.interrupt
        if act is None:
            raise KeyboardInterrupt
        if self._end is not None:
            os._exit(128 + (self.number or number))  # the engine ends with this process
        if self.number is None:
            self.number = number
        else:
            act = self.hurry or act
            self._end = threading.Timer(_HURRY_SECONDS, os._exit, (128 + self.number,))
            self._end.daemon = True
            self._end.start()
        threading.Thread(target=act, name="signal", daemon=True).start()

"""Signals that end a program, their handlers, and the end of a child with its parent."""

import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGXCPU, Signals
from types import FrameType

__all__ = ["SIGHUP", "SIGINT", "SIGKILL", "SIGTERM", "SIGXCPU", "Signals"]

ENDING = (SIGINT, SIGTERM, SIGHUP)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

Handler = Callable[[int, FrameType | None], None]


def ending_signals() -> Iterator[Signals]:
    """Yield the signals that a program has to handle: Ctrl-C, SIGTERM, and a closed terminal.

    Under nohup, a closed terminal stays ignored. A shell's `&` makes a program ignore Ctrl-C, too, but then
    there would be no way to cancel.
    """
    for number in ENDING:
        if number != SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            yield number


def handle(handler: Handler) -> dict[Signals, object]:
    return {number: signal.signal(number, handler) for number in ending_signals()}


def restore(handlers: dict[Signals, object]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)  # pyright: ignore[reportArgumentType]


def ignore_ctrl_c() -> None:
    """Ignore Ctrl-C, which reaches the whole process group. The parent handles it."""
    signal.signal(SIGINT, signal.SIG_IGN)


def block_ctrl_c() -> None:
    """Keep Ctrl-C from this thread, and from the processes that it starts until they unblock it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGINT})


def unblock_ending() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_with_parent() -> None:
    """Have Linux kill this process when the thread that has started it ends; elsewhere, do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, SIGKILL)

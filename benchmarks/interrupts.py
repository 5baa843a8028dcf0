"""The end of a benchmark by Ctrl-C, which keeps what was measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

EXIT_INTERRUPTED = 130


@dataclass
class Interrupt:
    """Whether Ctrl-C has ended the measurements."""

    happened: bool = False


@contextmanager
def until_interrupted() -> Iterator[Interrupt]:
    """Let Ctrl-C end the block instead of the program, which then writes what was measured."""
    interrupt = Interrupt()
    try:
        yield interrupt
    except KeyboardInterrupt:
        interrupt.happened = True
        sys.stderr.write("Interrupted. What was measured is kept.\n")

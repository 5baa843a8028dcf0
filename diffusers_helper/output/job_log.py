"""The text log of one job, with the program's log records while it is made."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffusers_helper.files import open_at_once, read_file, write_atomic
from diffusers_helper.machine.terminal import LogLines

# The loggers whose records are written; those of other libraries are not.
_PACKAGES = ("diffusers_helper", "cache")
MOST_BYTES = 512 * 1024
_CUT = b"(earlier lines were removed)\n"


@contextmanager
def job_log(file: Path) -> Iterator[None]:
    """Append the program's log records of level INFO and above to a file, within the context.

    It has the lines of the memory document (docs/amd-memory.md), with their times: the free memory before a
    stage, the memory that each flush has freed, and the statistics of the convolutions. If the file cannot be
    written, this is ignored, since a log must not end a job.
    """
    handler = _BoundedFile(file)
    handler.setFormatter(LogLines("%(asctime)s %(levelname)s %(message)s"))
    loggers = {name: logging.getLogger(name) for name in _PACKAGES}
    levels = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        # The console's handlers have their own level, so this does not change what they show.
        logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
        logger.addHandler(handler)
    try:
        yield
    finally:
        for name, logger in loggers.items():
            logger.removeHandler(handler)
            logger.setLevel(levels[name])
        handler.close()


class _BoundedFile(logging.FileHandler):
    """A log file that loses its older half when it becomes too large."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace", delay=True)
        self.setLevel(logging.INFO)

    def _open(self) -> io.TextIOWrapper:
        descriptor = open_at_once(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return open(descriptor, "a", encoding=self.encoding, errors=self.errors)

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record to the log file, and shorten the file if it is too large."""
        try:
            super().emit(record)
            if self.stream is not None and self.stream.tell() > MOST_BYTES:
                self._cut()
        except OSError:
            self.handleError(record)

    def _cut(self) -> None:
        self.close()
        file = Path(self.baseFilename)
        kept = read_file(file, start=max(0, file.stat().st_size - MOST_BYTES // 2))
        _, _, lines = kept.partition(b"\n")
        write_atomic(file, _CUT + lines)

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing, since the job itself reports a missing folder or a full disk."""

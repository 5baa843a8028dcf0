"""The log of one job as a text file in its folder, whatever is shown on the console.

It holds the lines that people with Radeons know from the memory document, with their times: the memory
before a stage, what each flush gave back, and what the ladder of convolutions did.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diffusers_helper.files import write_atomic

# The loggers of the packages that work for a job; other libraries are not heard.
_PACKAGES = ("diffusers_helper", "cache")
MOST_BYTES = 512 * 1024
_CUT = b"(earlier lines were removed)\n"


@contextmanager
def job_log(file: Path) -> Iterator[None]:
    """Append to the file what this program logs from the level INFO on, while entered.

    A file that cannot be written is left out, as a log must not end a job.
    """
    handler = _BoundedFile(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = {name: logging.getLogger(name) for name in _PACKAGES}
    levels = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        # The handlers of the console have a level of their own.
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

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line."""
        try:
            super().emit(record)
            if self.stream is not None and self.stream.tell() > MOST_BYTES:
                self._cut()
        except OSError:
            self.handleError(record)

    def _cut(self) -> None:
        self.close()
        file = Path(self.baseFilename)
        _, _, lines = file.read_bytes()[-MOST_BYTES // 2 :].partition(b"\n")
        write_atomic(file, _CUT + lines)

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: the folder is missing or the disk is full, which the job itself reports."""

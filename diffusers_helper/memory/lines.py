"""The log lines of the memory document (docs/amd-memory.md), which a plain script sees, too."""

from __future__ import annotations

import logging


def report(log: logging.Logger, text: str, *values: object) -> None:
    """Log a line as information.

    In a program without any logging handler, Python shows warnings only. The line then goes to standard error
    as they do, unless the program has asked for less.
    """
    log.info(text, *values)
    last = logging.lastResort
    if last is not None and not log.hasHandlers() and log.getEffectiveLevel() <= logging.WARNING:
        last.handle(log.makeRecord(log.name, logging.INFO, "", 0, text, values, None))

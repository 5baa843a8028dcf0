"""The automatic removal of old jobs, which is off unless a user sets a limit."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.jobs.job import OVER, Job
from app.jobs.storage import trash
from app.jobs.storage.store import JobStore
from diffusers_helper.errors import InputError
from diffusers_helper.units import GB

KEEP_DAYS, KEEP_GB = "LONGTAKE_KEEP_DAYS", "LONGTAKE_KEEP_GB"
_DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits beyond which jobs are removed. Favourites, and jobs that are not over, are always kept.

    Attributes:
        seconds: The time after a job's end at which the job is removed.
        size_bytes: The size of all jobs together above which the oldest are removed.
    """

    seconds: float = math.inf
    size_bytes: float = math.inf

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Retention:
        """Return the limits from the environment; there are none by default.

        Raises:
            InputError: If a value is not a number above 0.
        """
        return cls(_number(environ, KEEP_DAYS) * _DAY, _number(environ, KEEP_GB) * GB)


def _number(environ: Mapping[str, str], name: str) -> float:
    text = environ.get(name, "").strip()
    try:
        number = float(text) if text else math.inf
    except ValueError:
        number = math.nan
    if not number > 0:
        raise InputError(f"{name} is {text[:60]!r}; expected a number above 0.", f"Correct or unset {name}.")
    return number


def tidy(store: JobStore, retention: Retention) -> list[str]:
    """Move the jobs beyond the limits to the trash, and delete those that have been there for a week.

    Returns:
        The ids of the removed jobs.

    Raises:
        OSError, sqlite3.Error: If the folder cannot be changed.
    """
    bin_ = store.held.with_name(trash.TRASH)
    states = ", ".join(f"'{state}'" for state in OVER)
    removed: list[str] = []
    if not (math.isinf(retention.seconds) and math.isinf(retention.size_bytes)):
        jobs = store.jobs(f"WHERE NOT favourite AND state IN ({states}) ORDER BY created, id")
        for job in _beyond(store, jobs, retention):
            with store.transaction() as database, contextlib.suppress(InputError):
                now = store.job(job.id)  # a user may have changed it in the meantime
                if now.is_over and not now.favourite:
                    trash.discard(database, store.folder(job.id), bin_)
                    removed.append(job.id)
    trash.empty(bin_)
    return removed


def _beyond(store: JobStore, jobs: list[Job], retention: Retention) -> list[Job]:
    oldest = time.time() - retention.seconds
    beyond = [job for job in jobs if (job.ended or job.created) < oldest]
    if math.isinf(retention.size_bytes):
        return beyond
    rest = [job for job in jobs if job not in beyond]
    sizes = {job.id: size_of(job.folder) for job in store.jobs("ORDER BY id")}
    kept = sum(sizes.values()) - sum(sizes.get(job.id, 0) for job in beyond)
    for job in rest:
        if kept <= retention.size_bytes:
            break
        kept -= sizes.get(job.id, 0)
        beyond.append(job)
    return beyond


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # the file is being replaced
            total += path.lstat().st_size
    return total

"""The removal of old videos, which is off unless a person sets its limits."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from app.jobs.job import OVER, Job
from app.jobs.storage import trash
from app.jobs.storage.store import JobStore
from diffusers_helper.errors import InputError
from diffusers_helper.units import GB

KEEP_DAYS, KEEP_GB = "LONGTAKE_KEEP_DAYS", "LONGTAKE_KEEP_GB"
_DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of what is kept; favourites, and jobs that are not over, are always kept.

    Attributes:
        seconds: The age, counted from a job's end, at which it is removed.
        size_bytes: The size of all jobs together, beyond which the oldest are removed.
    """

    seconds: float = math.inf
    size_bytes: float = math.inf

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Retention:
        """Return the limits that a person has set; none by default.

        Raises:
            InputError: For a value that is not a number above 0.
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
    """Move what is beyond the limits to the trash, and delete what has been there for long.

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
                now = store.job(job.id)  # a person may have changed it since
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
    sizes = {job.id: _size(job) for job in rest}
    kept = sum(map(_size, store.jobs("ORDER BY id"))) - sum(map(_size, beyond))
    for job in rest:
        if kept <= retention.size_bytes:
            break
        kept -= sizes[job.id]
        beyond.append(job)
    return beyond


def _size(job: Job) -> int:
    total = 0
    for path in job.folder.rglob("*"):
        with contextlib.suppress(OSError):  # it is being replaced
            total += path.lstat().st_size
    return total

"""The right to make the jobs of an outputs folder, which one program has at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from app.jobs.history import Retention, tidy
from app.jobs.storage.store import JobStore
from diffusers_helper.machine.file_locks import Lock

_log = logging.getLogger(__name__)
_TIDY_SECONDS = 3600.0


class Lead:
    """The lock for making the jobs, which all workers of a program share. Any thread may call any method.

    Args:
        on_change: Called after each change of what a user sees.
        retention: The limits beyond which old videos are removed.

    Attributes:
        is_follower: Whether another process makes the jobs while this one waits to take over.
    """

    def __init__(self, store: JobStore, on_change: Callable[[], None], retention: Retention) -> None:
        self._store, self._on_change, self._retention = store, on_change, retention
        self._mutex, self._tidied = threading.RLock(), -_TIDY_SECONDS
        self._lock: Lock | None = None  # if this process holds it
        self.is_follower = False

    def take(self) -> bool:
        """Take the lock if possible, and return whether this process holds it.

        Raises:
            OSError, sqlite3.Error: If the folder cannot be written.
        """
        with self._mutex:
            wants = self._store.has_work()
            if not (wants and self._lock is not None and self._lock.holds()):
                self.give_up()
                self._lock = self._store.lead() if wants else None
            leads = self._lock is not None
            if (follows := wants and not leads) != self.is_follower:
                self.is_follower = follows
                if leads and self._store.adopts:
                    _log.warning("The program that made the jobs has ended. This one makes them now.")
                self._on_change()
            return leads

    def give_up(self) -> None:
        """Let another process make the jobs."""
        with self._mutex:
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()

    def look_around(self) -> None:
        """Recover the jobs of processes that have died, and remove old videos now and then."""
        with self._mutex:
            if self._store.select("WHERE state IN ('running', 'waiting', 'interrupted') LIMIT 1", what="id"):
                self._store.recover()
                self._on_change()
            if self._lock is None:
                return
            if not self._store.adopts:
                self.give_up()
            elif time.monotonic() - self._tidied >= _TIDY_SECONDS:
                self._tidied = time.monotonic()
                if removed := tidy(self._store, self._retention):
                    _log.info("Removed, because they exceed a limit: %s", ", ".join(removed))
                    self._on_change()

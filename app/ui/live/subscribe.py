"""The connection that keeps an open page up to date, and the watch over the jobs that all pages share."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from app.jobs.job import MOVABLE
from app.jobs.service import JobService
from app.jobs.storage.trouble import TROUBLE
from app.ui import scripts
from app.ui.live import scene
from app.ui.live.scene import Presenter
from app.ui.live.watch import watch
from diffusers_helper.models.added import ADDED_MODELS

_PAUSE_SECONDS_A_PAGE = 0.02  # each update of a page costs milliseconds, so many pages get fewer of them
_LOOK_SECONDS = 1.0  # seconds after which a page without news looks whether its watch still runs
# A further page takes the place of the one opened first, which subscribes again after a while.
MOST_PAGES = 100
# A page advances these by itself. Each message costs it milliseconds, so these alone are only a sign of life.
_MOVING = ("beat", "elapsed", "spent", "quiet", "left")
_BEAT_SECONDS = 2.5


class _Watch:
    """A thread that watches the jobs until it is told to end; it calls `tell` whenever `latest` changes."""

    def __init__(self, service: JobService, chosen: str, tell: Callable[[], object]) -> None:
        self._service, self._chosen, self._tell = service, chosen, tell
        self.latest: scene.Shown | None = None
        self.is_wanted = True
        self.thread = threading.Thread(target=self._run, name="live-view", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while self.is_wanted:
            try:
                return self._follow()
            except TROUBLE:  # the outputs folder is away
                time.sleep(_LOOK_SECONDS)

    def _follow(self) -> None:
        presenter = Presenter(self._service)
        for seen in watch(self._service, self._chosen):
            if not self.is_wanted:
                return
            shown = presenter.show(seen)
            shown["open"] = [job.id for job in (seen.running, *seen.waiting) if job is not None]
            number = f" (number {seen.open_jobs + 1})" if seen.open_jobs else ""
            shown["queue"] = {
                "waiting": self._service.history.count(MOVABLE), "held": self._service.queue.is_held,
                "revision": self._service.revision, "download": self._service.downloads.share,
                "models": ADDED_MODELS.revision, "start": f"Start Generation{number}",
                "can_end": seen.open_jobs > 0,
            }  # fmt: skip
            self.latest = shown
            self._tell()


class Updates:
    """The updates of one service for every open page, within one event loop. A page needs no thread.

    One watch serves all pages that show the same job, as long as there are any.
    """

    def __init__(self, service: JobService) -> None:
        self._service, self._numbers = service, count()
        self._pages = dict[int, str]()  # the jobs that users have chosen, by page, in order of opening
        self._watches = dict[str, _Watch]()  # by those jobs
        self._news = asyncio.Event()

    async def stream(self, job: str = "") -> AsyncGenerator[str, None]:
        """Keep one page, which may have chosen a running job, up to date until it or the service ends.

        Yields:
            Server-sent events: the live view and the version of the scripts, or only the values that moved.
        """
        page = next(self._numbers)
        self._pages[page] = job
        if job not in self._watches or not self._watches[job].thread.is_alive():
            self._watches[job] = _Watch(self._service, job, partial(self._tell, asyncio.get_running_loop()))
        seen, before, sent, is_alive = None, dict[str, Any](), -math.inf, True
        try:
            while is_alive and (mine := self._watches.get(job)) and page in [*self._pages][-MOST_PAGES:]:
                news_come, is_alive, shown = self._news, mine.thread.is_alive(), mine.latest
                if shown is not None and shown is not seen:
                    seen, news = shown, {name: shown[name] for name in shown if name not in _MOVING}
                    moved = {name: shown[name] for name in shown if name in _MOVING}
                    if news != before or time.monotonic() - sent >= _BEAT_SECONDS:
                        change = moved if news == before else shown | {"version": scripts.version()}
                        yield f"data: {json.dumps(change)}\n\n"
                        before, sent = news, time.monotonic()
                with suppress(TimeoutError):
                    await asyncio.wait_for(news_come.wait(), _LOOK_SECONDS)
                await asyncio.sleep(_PAUSE_SECONDS_A_PAGE * len(self._pages))
        finally:
            del self._pages[page]
            if job not in self._pages.values() and (ended := self._watches.pop(job, None)):
                ended.is_wanted = False

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all pages look at what the watch has seen. Its thread calls this."""
        with suppress(RuntimeError):  # the server has ended, and its loop is closed
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

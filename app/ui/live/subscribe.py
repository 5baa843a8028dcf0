"""The connection that keeps an open page up to date, and the watch over the jobs that all pages share."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from app.jobs.job import MOVABLE
from app.jobs.service import JobService
from app.ui import scripts
from app.ui.form.markup import start_label
from app.ui.live import scene
from app.ui.live.scene import Presenter
from app.ui.live.watch import watch
from app.ui.waiting import Limiter, Slot
from diffusers_helper.models.added import ADDED_MODELS

_PAUSE_SECONDS_A_PAGE = 0.02  # each update of a page costs milliseconds, so many pages get fewer of them
_LOOK_SECONDS = 1.0  # seconds after which a page without news looks whether its watch still runs
_HUNG_SECONDS = 3.0  # a watch yields something every second
# A further page takes the place of the one opened first, which subscribes again after a while.
MOST_PAGES = 100
# A page advances these by itself. Each message costs it milliseconds, so these alone are only a sign of life.
_MOVING = ("beat", "elapsed", "quiet", "left")
_BEAT_SECONDS = 2.5


class _Watch:
    """A thread that watches the jobs until it is told to end.

    Args:
        chosen: The running job that is shown, if not the one that began first.
        tell: Called in the thread after each change of `latest`.
    """

    def __init__(self, service: JobService, chosen: str, tell: Callable[[], object]) -> None:
        self._service, self._chosen, self._tell = service, chosen, tell
        self.latest: scene.Shown | None = None
        self.reported, self.is_wanted = time.monotonic(), True
        self.thread = threading.Thread(target=self._run, name="live-view", daemon=True)
        self.thread.start()

    @property
    def is_well(self) -> bool:
        return self.thread.is_alive() and time.monotonic() - self.reported < _HUNG_SECONDS

    def _run(self) -> None:
        presenter = Presenter(self._service)
        for seen in watch(self._service, self._chosen):
            if not self.is_wanted:
                return
            shown = presenter.show(seen)
            shown["open"] = [job.id for job in (seen.running, *seen.waiting) if job is not None]
            shown["queue"] = {
                "waiting": self._service.history.count(MOVABLE), "held": self._service.queue.is_held,
                "revision": self._service.revision, "download": self._service.downloads.share,
                "models": ADDED_MODELS.revision, "start": start_label(seen.open_jobs),
                "can_end": seen.open_jobs > 0,
            }  # fmt: skip
            self.latest = shown
            self.reported = time.monotonic()
            self._tell()


class Updates:
    """The updates of one service for every open page, within one event loop. A page needs no thread.

    One watch serves all pages that show the same job, as long as there are any. One that hangs is replaced
    when a page comes.
    """

    def __init__(self, service: JobService) -> None:
        self._service, self._room = service, Limiter(MOST_PAGES, newcomer_goes=False)
        # Both are by the job that users have chosen.
        self._pages, self._watches = Counter[str](), dict[str, _Watch]()
        self._news = asyncio.Event()

    async def stream(self, job: str = "") -> AsyncGenerator[str, None]:
        """Yield the updates of one page as server-sent events, for the running job that it names, if any."""
        with self._room.place(lambda: True) as place:
            async with aclosing(self.changes(place, job)) as changes:
                async for change in changes:
                    yield f"data: {json.dumps(change)}\n\n"

    async def changes(self, place: Slot, job: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """Keep one page up to date until it is gone or the service is stopped, by sending what has changed.

        Yields:
            The live view and the version of the scripts, or only the values that have moved.
        """
        self._pages[job] += 1
        if job not in self._watches or not self._watches[job].is_well:
            self._end_watch(job)
            self._watches[job] = _Watch(self._service, job, partial(self._tell, asyncio.get_running_loop()))
        seen, before, sent, is_alive = None, dict[str, Any](), -math.inf, True
        try:
            while is_alive and (mine := self._watches.get(job)) and not place.is_lost.is_set():
                news_come, is_alive, shown = self._news, mine.thread.is_alive(), mine.latest
                if shown is not None and shown is not seen:
                    seen, news = shown, {name: shown[name] for name in shown if name not in _MOVING}
                    moved = {name: shown[name] for name in shown if name in _MOVING}
                    if news != before or time.monotonic() - sent >= _BEAT_SECONDS:
                        yield moved if news == before else shown | {"version": scripts.version()}
                        before, sent = news, time.monotonic()
                with suppress(TimeoutError):
                    await asyncio.wait_for(news_come.wait(), _LOOK_SECONDS)
                await asyncio.sleep(_PAUSE_SECONDS_A_PAGE * self._pages.total())
        finally:
            self._pages[job] -= 1
            if not self._pages[job]:
                self._end_watch(job)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all pages look at what the watch has seen. Its thread calls this."""
        with suppress(RuntimeError):  # the server has ended, and its loop is closed
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _end_watch(self, job: str) -> None:
        if ended := self._watches.pop(job, None):
            ended.is_wanted = False

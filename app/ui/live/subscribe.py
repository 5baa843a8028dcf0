"""The connection that keeps an open page up to date, and the watch over the jobs that all pages share."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
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

_LOOK_SECONDS = 0.1
_LOOK_SECONDS_A_PAGE = 0.02  # each update of a page costs a few milliseconds, so many pages get fewer of them
_HUNG_SECONDS = 3.0  # a watch yields something every second
# A further page takes the place of the one opened first, which subscribes again after a while.
MOST_PAGES = 100
# A page advances these by itself. Each message costs it milliseconds, so these alone are only a sign of life.
_MOVING = ("beat", "elapsed", "quiet", "left")
_BEAT_SECONDS = 2.5


class _Watch:
    """A thread that watches the jobs until it is told to end."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self.latest: scene.Shown | None = None
        self.reported, self.is_wanted = time.monotonic(), True
        self.thread = threading.Thread(target=self._run, name="live-view", daemon=True)
        self.thread.start()

    @property
    def is_well(self) -> bool:
        return self.thread.is_alive() and time.monotonic() - self.reported < _HUNG_SECONDS

    def _run(self) -> None:
        presenter = Presenter(self._service)
        for seen in watch(self._service):
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


class Broadcast:
    """The sender of one watch's updates to every page, within one event loop. A page needs no thread.

    The watch lasts as long as there are pages. One that hangs is replaced when a page subscribes.
    """

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._pages = 0
        self._watch: _Watch | None = None

    async def updates(self) -> AsyncGenerator[scene.Shown | None, None]:
        """Yield the newest update whenever there is one, and None meanwhile.

        The updates end when the service is stopped.
        """
        self._pages += 1
        if self._watch is None or not self._watch.is_well:
            self._end_watch()
            self._watch = _Watch(self._service)
        seen: scene.Shown | None = None
        try:
            while self._watch is not None:
                latest, alive = self._watch.latest, self._watch.thread.is_alive()
                yield None if latest is seen else latest
                seen = latest
                if not alive:
                    return
                await asyncio.sleep(_LOOK_SECONDS + _LOOK_SECONDS_A_PAGE * self._pages)
        finally:
            self._pages -= 1
            if not self._pages:
                self._end_watch()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.is_wanted, self._watch = False, None


class Updates:
    """The updates of one service for every open page."""

    def __init__(self, service: JobService) -> None:
        self._broadcast, self._room = Broadcast(service), Limiter(MOST_PAGES, newcomer_goes=False)

    async def stream(self) -> AsyncGenerator[str, None]:
        """Yield the updates of one page as server-sent events."""
        with self._room.place(lambda: True) as place:
            async with aclosing(subscribe(self._broadcast, place)) as changes:
                async for change in changes:
                    yield f"data: {json.dumps(change)}\n\n"


async def subscribe(broadcast: Broadcast, place: Slot) -> AsyncGenerator[dict[str, Any], None]:
    """Keep one page up to date until it is gone, by sending only what has changed.

    Yields:
        The live view and the version of the scripts, or only the values that have moved.
    """
    before: dict[str, Any] = {}
    sent = -math.inf
    async with aclosing(broadcast.updates()) as updates:
        async for shown in updates:
            if place.is_lost.is_set():
                return
            if shown is None:
                continue
            news = {name: value for name, value in shown.items() if name not in _MOVING}
            if news != before:
                yield shown | {"version": scripts.version()}
            elif time.monotonic() - sent >= _BEAT_SECONDS:
                yield {name: value for name, value in shown.items() if name in _MOVING}
            else:
                continue
            before, sent = news, time.monotonic()

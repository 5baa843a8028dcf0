"""The connection that keeps an open page up to date, and the watch over the jobs that all pages share."""

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from app.jobs.job import MOVABLE
from app.jobs.service import JobService
from app.jobs.storage.trouble import TROUBLE
from app.ui import scripts
from app.ui.live import scene
from app.ui.live.scene import Presenter
from app.ui.live.watch import watch
from diffusers_helper.models.added import ADDED_MODELS

# Each update of a page costs time, so many pages get fewer of them; a page expects one every few seconds.
_PAUSE_SECONDS, _PAUSE_SECONDS_A_PAGE, _MOST_PAUSE_SECONDS = 0.1, 0.02, 2.0
_AWAY_SECONDS = 1.0
# A page advances these by itself. Each message costs it milliseconds, so these alone are only a sign of life.
_MOVING_VALUES = ("beat", "elapsed", "spent", "quiet", "left")
_BEAT_SECONDS = 2.5


class _Update(NamedTuple):
    """What pages are sent.

    Attributes:
        steady: The values that do not move. Equal ones are the same object as before.
        whole, beat: Server-sent events with all values, and with those that move.
    """

    steady: dict[str, Any]
    whole: str
    beat: str


class _Watch:
    """A thread that watches the jobs until `is_wanted` is false."""

    def __init__(self, service: JobService, job_id: str) -> None:
        self._service, self._job_id = service, job_id
        self.latest: _Update | None = None
        self.is_wanted = True
        self.thread = threading.Thread(target=self._run, name="live-view", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while self.is_wanted:
            try:
                return self._follow()
            except TROUBLE:  # the outputs folder is away
                time.sleep(_AWAY_SECONDS)

    def _follow(self) -> None:
        presenter = Presenter(self._service)
        for current in watch(self._service, self._job_id):
            if not self.is_wanted:
                return
            data = presenter.show(current)
            data["open"] = [job.id for job in (current.running, *current.waiting) if job is not None]
            number = f" (number {current.open_jobs + 1})" if current.open_jobs else ""
            data["queue"] = {
                "waiting": self._service.history.count(MOVABLE), "held": self._service.queue.is_paused,
                "revision": self._service.revision, "download": self._service.downloads.share,
                "models": ADDED_MODELS.revision, "start": f"Start Generation{number}",
                "can_end": current.open_jobs > 0,
            }  # fmt: skip
            self.latest = self._update(data)

    def _update(self, data: scene.SceneData) -> _Update:
        steady = {name: data[name] for name in data if name not in _MOVING_VALUES}
        moving = {name: data[name] for name in data if name in _MOVING_VALUES}
        if self.latest and steady == self.latest.steady:
            steady = self.latest.steady
        whole = data | {"version": scripts.version()}
        return _Update(steady, f"data: {json.dumps(whole)}\n\n", f"data: {json.dumps(moving)}\n\n")


class Updates:
    """The updates of one service for every open page, within one event loop. A page needs no thread.

    One watch serves all pages that show the same job, as long as there are any.
    """

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._pages = list[str]()  # the jobs that users have chosen, one for each page
        self._watches = dict[str, _Watch]()  # by those jobs

    async def stream(self, job: str = "") -> AsyncGenerator[str, None]:
        """Keep one page, which may have chosen a running job, up to date until it or the service ends.

        Yields:
            Server-sent events: the live view and the version of the scripts, or only the values that moved.
        """
        self._pages.append(job)
        if job not in self._watches or not self._watches[job].thread.is_alive():
            self._watches[job] = _Watch(self._service, job)
        last = last_sent = None
        sent_at = -math.inf
        is_alive = True
        try:
            while is_alive and (job_watch := self._watches.get(job)):
                is_alive = job_watch.thread.is_alive()
                update = job_watch.latest
                if update is not None and update is not last:
                    last = update
                    is_new = last_sent is None or update.steady is not last_sent.steady
                    if is_new or time.monotonic() - sent_at >= _BEAT_SECONDS:
                        yield update.whole if is_new else update.beat
                        last_sent, sent_at = update, time.monotonic()
                pause = max(_PAUSE_SECONDS, _PAUSE_SECONDS_A_PAGE * len(self._pages))
                await asyncio.sleep(min(_MOST_PAUSE_SECONDS, pause))
        finally:
            self._pages.remove(job)
            if job not in self._pages and (unused_watch := self._watches.pop(job, None)):
                unused_watch.is_wanted = False


def add_updates(router: APIRouter, service: JobService) -> None:
    updates = Updates(service)

    @router.get("/live")
    def follow(job: str = "") -> StreamingResponse:
        with suppress(*TROUBLE):  # the stream goes on once the folder is there again
            running, waiting = service.open_jobs()
            job = job if any(other.id == job for other in (running, *waiting) if other is not None) else ""
        return StreamingResponse(updates.stream(job), media_type="text/event-stream")

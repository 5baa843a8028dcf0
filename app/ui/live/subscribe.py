"""The connection that keeps an open page up to date, and the watch over the jobs that all pages share.

It only reads: no job depends on it.
"""

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from app.jobs.job import BEGUN, MOVABLE, Job, NoSuchJob, size_of
from app.jobs.pace import PaceBook
from app.jobs.service import JobService
from app.jobs.storage.trouble import TROUBLE
from app.ui import scripts
from app.ui.live.progress import LiveJob
from app.ui.live.scene import Presenter, SceneData
from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.added import ADDED_MODELS

# Each update of a page costs time, so many pages get fewer of them; a page expects one every few seconds.
_PAUSE_SECONDS, _PAUSE_SECONDS_A_PAGE, _MOST_PAUSE_SECONDS = 0.1, 0.02, 2.0
_AWAY_SECONDS = 1.0
# A page advances these by itself. Each message costs it milliseconds, so these alone are only a sign of life.
_MOVING_VALUES = ("beat", "elapsed", "spent", "quiet", "left")
_BEAT_SECONDS = 2.5
_MIN_PAUSE_SECONDS = 0.2  # between two updates; more updates would only cost the browser work
_RECENT_SECONDS = 600.0  # for which a job without a video is still shown on a new page


def watch(service: JobService, chosen_id: str = "") -> Iterator[LiveJob | None]:
    """Yield a job for ever, once a second or more often: the chosen or first running one, or the newest."""
    live: LiveJob | None = None
    paces = PaceBook(service)
    while True:
        changes = service.changes
        running, waiting = service.open_jobs()
        running_job = next((job for job in waiting if job.id == chosen_id and job.state in BEGUN), running)
        job = running_job or (waiting[0] if waiting else _newest(service, live))
        if job is None or (live is not None and live.job.id == job.id and job.is_over):
            yield live
            service.wait(changes)
        else:
            try:
                pace = None if job.is_over else paces.pace(job.request.model)
                live = LiveJob(job, pace, *size_of(job))
                yield from _watch_job(service, live)
            except NoSuchJob:  # a user removed it
                live = None
            except LongtakeError:  # the service was stopped, and the server ends with it
                return


def _watch_job(service: JobService, live: LiveJob) -> Iterator[LiveJob]:
    shown_at = math.inf  # what happened earlier is shown as a whole, not replayed
    for item in service.follow(live.job.id):
        if item is not None:
            live.apply(item[1])
            if time.monotonic() < shown_at + _MIN_PAUSE_SECONDS:
                continue  # the change comes with the next event, or with the pause after it
        job = service.job(live.job.id)
        if job.request != live.job.request:  # a user has changed what comes next
            return
        live.job = job
        live.commands = frozenset(service.commands(live.job))
        live.jobs_first = service.queue_position(live.job.id) if live.job.state == "queued" else 0
        live.queue_is_paused = live.job.state == "queued" and service.queue.is_paused
        live.awake = any(worker.keeps_awake for worker in service.crew.workers)
        yield live
        shown_at = time.monotonic()
        if live.job.state in MOVABLE and service.open_jobs()[0] is not None:
            return
    live.job, live.commands = service.job(live.job.id), frozenset()
    yield live


def _newest(service: JobService, live: LiveJob | None) -> Job | None:
    """Find the job that changed its state last; if none was shown yet, with a video or a recent end."""
    for job in service.recent_jobs():
        if live is not None or job.video is not None or time.time() - (job.ended or 0) < _RECENT_SECONDS:
            return job
    return None


class _Update(NamedTuple):
    """Events with all values, or with those that move. Equal steady values are one object."""

    steady: dict[str, Any]
    whole: str
    beat: str


class _Watch(threading.Thread):
    def __init__(self, service: JobService, job_id: str) -> None:
        super().__init__(name="live-view", daemon=True)
        self._service, self._job_id = service, job_id
        self.latest: _Update | None = None
        self.is_wanted = True
        self.start()

    def run(self) -> None:
        presenter = Presenter(self._service)
        while self.is_wanted:
            try:
                for live in watch(self._service, self._job_id):
                    if not self.is_wanted:
                        return
                    self.latest = self._update(self._data(presenter, live))
                return
            except NoSuchJob:  # it has been removed
                return
            except TROUBLE:  # the outputs folder is away
                time.sleep(_AWAY_SECONDS)

    def _data(self, presenter: Presenter, live: LiveJob | None) -> SceneData:
        running, waiting = self._service.open_jobs()
        open_jobs = sum(not job.waits for job in waiting) + (running is not None)
        number = f" (number {open_jobs + 1})" if open_jobs else ""
        queue = {
            "waiting": self._service.history.count(MOVABLE), "held": self._service.queue.is_paused,
            "revision": self._service.revision, "download": self._service.downloads.share,
            "models": ADDED_MODELS.revision, "start": f"Start Generation{number}", "can_end": open_jobs > 0,
        }  # fmt: skip
        return presenter.show(live) | {"queue": queue}

    def _update(self, data: SceneData) -> _Update:
        steady = {name: data[name] for name in data if name not in _MOVING_VALUES}
        moving = {name: data[name] for name in data if name in _MOVING_VALUES}
        if self.latest and steady == self.latest.steady:
            steady = self.latest.steady
        whole = data | {"version": scripts.version()}
        return _Update(steady, f"data: {json.dumps(whole)}\n\n", f"data: {json.dumps(moving)}\n\n")


class Updates:
    """The updates for every open page, which needs no thread: one watch serves all that show the same job."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._pages = list[str]()  # the jobs that users have chosen, one for each page
        self._watches = dict[str, _Watch]()  # by those jobs

    async def stream(self, job: str = "") -> AsyncGenerator[str, None]:
        """Keep a page, which may have chosen a running job, up to date until it or the service ends."""
        self._pages.append(job)
        if job not in self._watches or not self._watches[job].is_alive():
            self._watches[job] = _Watch(self._service, job)
        last = last_sent = None
        sent_at = -math.inf
        is_alive = True
        try:
            while is_alive and (job_watch := self._watches.get(job)):
                is_alive = job_watch.is_alive()
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

"""The calls of the live view: the stream that keeps an open page up to date, and the scene of one job."""

from contextlib import suppress

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from app.jobs.service import JobService
from app.jobs.storage.trouble import TROUBLE
from app.ui.api import api_router
from app.ui.live.scene import Presenter, SceneData
from app.ui.live.subscribe import Updates


class LiveCalls:
    def __init__(self, service: JobService) -> None:
        self._presenter = Presenter(service)

    def jobs_scene(self, job: str) -> SceneData:
        """Tell what the page's stage shows of a job: video, sections, figures, settings and memory."""
        return self._presenter.show_job(job)


def live_router(calls: LiveCalls, updates: Updates) -> APIRouter:
    router = api_router("live")

    @router.get("")
    def follow(job: str = "") -> StreamingResponse:
        with suppress(*TROUBLE):  # the stream goes on once the folder is there again
            job = job if updates.is_open(job) else ""
        return StreamingResponse(updates.stream(job), media_type="text/event-stream")

    router.get("/{job}")(calls.jobs_scene)
    return router

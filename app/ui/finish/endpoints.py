"""The calls that finish videos of the history and uploaded ones."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.jobs.finishing import add_finishing, finishing_request, forecast
from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.pictures import Upload, uploaded
from app.ui.queue.records import Record, Records
from diffusers_helper.request import GenerationRequest

_MOST_JOINED = 31


class VideoSource(BaseModel, frozen=True):
    """A video: the id of a `job`, or else the `path` that the route for uploads returned."""

    job: str = ""
    path: str = ""


_Sources = Annotated[list[VideoSource] | None, Field(max_length=_MOST_JOINED)]


class FinishCalls:
    """The calls for one service. Each raises InputError for videos or steps that cannot be used."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service = service
        self._records = Records(service, catalogue)

    def finish_plan(
        self, video: VideoSource, steps: str, join: _Sources = None, sound: Upload | None = None
    ) -> dict[str, Any]:
        """Tell what steps such as `enlarge:4,smooth:60` would make of a video, and how long that takes.

        `join` are the videos behind it, and `sound` is a file whose sound replaces its own.
        """
        _, request = self._asked(video, steps, join, sound)
        return forecast(self._service.queue.store, request)

    def finish_start(
        self, video: VideoSource, steps: str, join: _Sources = None, sound: Upload | None = None
    ) -> Record:
        """Queue the job that does steps to a video, with the arguments of `finish_plan`."""
        source, request = self._asked(video, steps, join, sound)
        return self._records.of(add_finishing(self._service.queue, request, source))

    def _asked(
        self, video: VideoSource, steps: str, join: list[VideoSource] | None, sound: Upload | None
    ) -> tuple[Job | Path, GenerationRequest]:
        source, *others = (
            self._service.job(item.job) if item.job else uploaded(Upload(path=item.path))
            for item in (video, *(join or ()))
        )
        file = str(uploaded(sound)) if sound else ""
        return source, finishing_request(source, steps, join=others, sound=file)

"""The calls that export a video: the formats with their sizes, and the file in one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.responses import StreamingResponse
from typing_extensions import TypedDict

from app.jobs.exports import Exports
from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.api import api_router
from app.ui.errors import page_words
from app.ui.fields import Text
from app.ui.live.scene import download_name, file_url
from diffusers_helper.errors import LongtakeError
from diffusers_helper.units import size_text


class FormatOffer(TypedDict):
    """A format, with the estimated size of the video in it."""

    format: str
    label: str
    size: str


class Exported(TypedDict):
    """An exported file: its address, the name to save it by, and its size."""

    url: str
    name: str
    size: str


class ExportCalls:
    """The calls for one service. The docstring of a method is what programs read about it."""

    def __init__(self, service: JobService, exports: Exports) -> None:
        self._service, self._exports = service, exports

    def exports_list(self, job: str) -> list[FormatOffer]:
        """List the formats to which a video can be exported here, with estimated sizes."""
        return [
            {
                "format": offer["format"],
                "label": offer["label"],
                "size": f"{'' if offer['is_exact'] else 'about '}{size_text(offer['bytes'])}",
            }
            for offer in self._exports.offers(self._service.job(job))
        ]

    def exports_make(self, job: str, format: str) -> Exported:
        """Export a video, wait for it, and tell the address of the file."""
        record = self._service.job(job)
        for _ in self._exports.make(record, format):
            pass
        return _exported(record, format, self._exports.file(record, format))


def exports_router(calls: ExportCalls, service: JobService, exports: Exports) -> APIRouter:
    router = api_router("exports")
    router.get("/{job}")(calls.exports_list)

    @router.post("/{job}")
    def make(job: str, format: Text) -> StreamingResponse:
        lines = _lines(service.job(job), format, exports)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    return router


def _lines(job: Job, format: str, exports: Exports) -> Iterator[str]:
    """Export a video, and yield objects in JSON: the `share` that is done, then the file or the `refusal`."""
    answer: Mapping[str, Any]
    try:
        for share in exports.make(job, format):
            yield json.dumps({"share": share}) + "\n"
        answer = _exported(job, format, exports.file(job, format))
    except (LongtakeError, OSError) as error:  # also when the job is removed meanwhile
        answer = {"refusal": page_words(str(error), job.folder.parent)}
    yield json.dumps(answer) + "\n"


def _exported(job: Job, format: str, file: Path) -> Exported:
    name = Path(download_name(job.request.prompt, job.id, 0 if job.state == "finished" else job.frames))
    codec = f"-{format}" if file.suffix == name.suffix else ""
    return {
        "url": file_url(job, f"{file.parent.name}/{file.name}"),
        "name": f"{name.stem}{codec}{file.suffix}",
        "size": size_text(file.stat().st_size),
    }

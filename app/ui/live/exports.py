"""The calls that export a video: the formats with their sizes, and the file in one of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import StreamingResponse

from app.jobs.exports import Offer, export_file, frames_zip, make_export, offers
from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.api import zip_answer
from app.ui.errors import page_words
from app.ui.live.scene import download_name, file_url
from diffusers_helper.errors import LongtakeError
from diffusers_helper.units import size_text

_Text = Annotated[str, Body(embed=True)]


def add_exports(router: APIRouter, service: JobService) -> None:
    @router.post("/exports_list")
    def exports_list(job: _Text) -> list[Offer]:
        return [
            offer | {"size": f"{'' if offer['is_exact'] else 'about '}{size_text(offer['bytes'])}"}
            for offer in offers(service.job(job))
        ]

    @router.get("/exports/frames")
    def exports_frames(job: str) -> StreamingResponse:
        record = service.job(job)
        return zip_answer(_name(record).with_suffix(".zip"), frames_zip(record))

    @router.post("/exports_make")
    def exports_make(job: _Text, format: _Text) -> StreamingResponse:
        """Export a video, and tell of it in lines of JSON, the last of which names the file."""
        lines = (json.dumps(line) + "\n" for line in _steps(service.job(job), format))
        return StreamingResponse(lines, media_type="application/x-ndjson")


def _steps(job: Job, format: str) -> Iterator[dict[str, Any]]:
    """Yield the `share` that is done, and then the file or the `refusal`."""
    try:
        for share in make_export(job, format):
            yield {"share": share}
        file = export_file(job, format)
    except (LongtakeError, OSError) as error:  # also when the job is removed meanwhile
        yield {"refusal": page_words(str(error), job.folder.parent)}
        return
    name = _name(job)
    codec = f"-{format}" if file.suffix == name.suffix else ""
    yield {
        "url": file_url(job, f"{file.parent.name}/{file.name}"),
        "name": f"{name.stem}{codec}{file.suffix}",
        "size": size_text(file.stat().st_size),
    }


def _name(job: Job) -> Path:
    return Path(download_name(job.request.prompt, job.id, 0 if job.state == "finished" else job.frames))

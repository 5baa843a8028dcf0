"""The calls that export a video: its formats with their sizes, and the file in one of them.

Processes of their own try the formats and make the files.
"""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import StreamingResponse

from app.jobs.job import Job, NotAllowed, video_of
from app.jobs.service import JobService
from app.jobs.stdio import close_child, opened
from app.machine import module_command
from app.trials import ask_probe, asked
from app.ui.api import zip_answer
from app.ui.errors import page_words
from app.ui.live.scene import download_name, file_url
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.units import size_text

_BEAT_SECONDS = 0.5  # until an iterator can hear that nobody wants the export any more
_MOST_SECONDS = 60.0  # for an answer about a format
_CHUNK_BYTES = 1 << 20
_TURN = threading.Lock()
_Text = Annotated[str, Body(embed=True)]

Offer = dict[str, Any]
"""A format for a video: its name as `format`, its `label`, `suffix` and `bytes`, and its `size` in words."""


def add_exports(router: APIRouter, service: JobService) -> None:
    @router.post("/exports_list")
    def exports_list(job: _Text) -> list[Offer]:
        return [*offers(service.job(job)).values()]

    @router.get("/exports/frames")
    def exports_frames(job: str) -> StreamingResponse:
        record = service.job(job)
        return zip_answer(_name(record).with_suffix(".zip"), frames_zip(record))

    @router.post("/exports_make")
    def exports_make(job: _Text, format: _Text) -> StreamingResponse:
        """Export a video, and tell of it in lines of JSON, the last of which is the file or a `refusal`."""
        return StreamingResponse(_lines(service.job(job), format), media_type="application/x-ndjson")


def offers(job: Job) -> dict[str, Offer]:
    """Return the formats for a job's video by their names. Each encoder is tried before it is offered."""
    if job.request.one_frame:
        raise NotAllowed(job, "one with a video", "Wait for its first section.")
    video = video_of(job)
    return _offers(video, video.stat().st_mtime_ns)


@lru_cache(maxsize=100)
def _offers(video: Path, changed_ns: int) -> dict[str, Offer]:
    offers = list[Offer]()
    end = ask_probe(["formats", str(video)], offers.append, os.environ, _MOST_SECONDS)
    if end.reason:
        raise LongtakeError(f"The formats cannot be tried: {end.reason}.", "Try it again.")
    return {offer["format"]: offer for offer in offers}


def _offer(job: Job, name: str) -> Offer:
    if name not in (by_name := offers(job)):
        problem = f"format is {name[:40]!r}; expected one of {', '.join(by_name)}."
        raise InputError(problem, "Choose another format.")
    return by_name[name]


def frames_zip(job: Job) -> tuple[int, Iterator[bytes]]:
    """Return the size of a ZIP file of a video's frames, and its parts, with which their process ends."""

    def parts() -> Iterator[bytes]:
        command, environ = module_command("app.probe", os.environ)
        pipe = subprocess.PIPE
        process = subprocess.Popen([*command, question], stdin=pipe, stdout=pipe, env=environ)
        try:
            while part := opened(process.stdout).read(_CHUNK_BYTES):
                yield part
        finally:
            close_child(process, 0.0)

    question = json.dumps(["frames", str(video_of(job))])
    return _offer(job, "png")["bytes"], parts()


def make_export(job: Job, name: str) -> Iterator[dict[str, Any]]:
    """Make an export unless it is there, and remove the job's other ones; yield each `share`, and the file.

    Exports wait for each other. An iterator that is closed ends its process.
    """
    suffix, video, download = _offer(job, name)["suffix"], video_of(job), _name(job)
    target = JobFolder(job.folder).exports / f"{job.frames}-{name}{suffix}"
    if not target.exists() or target.stat().st_mtime < video.stat().st_mtime:
        with _TURN, asked(["export", str(video), str(target), name], os.environ) as (child, answers):
            target.parent.mkdir(exist_ok=True)
            answer: Any = [0, 1]
            while answer is not None:
                if isinstance(answer, str):
                    raise LongtakeError(answer, "")
                yield {"share": answer[0] / answer[1]}
                with suppress(queue.Empty):
                    answer = answers.get(timeout=_BEAT_SECONDS)
            if code := child.process.wait():
                raise LongtakeError(f"The export has ended with {code}.", "Try another format.")
            for other in target.parent.iterdir():
                if other != target:
                    other.unlink(missing_ok=True)
    yield {
        "url": file_url(job, f"{target.parent.name}/{target.name}"),
        "name": f"{download.stem}{f'-{name}' if suffix == download.suffix else ''}{suffix}",
        "size": size_text(target.stat().st_size),
    }


def _lines(job: Job, format: str) -> Iterator[str]:
    try:
        for step in make_export(job, format):
            yield json.dumps(step) + "\n"
    except (LongtakeError, OSError) as error:  # also when the job is removed meanwhile
        yield json.dumps({"refusal": page_words(str(error), job.folder.parent)})


def _name(job: Job) -> Path:
    return Path(download_name(job.request.prompt, job.id, 0 if job.state == "finished" else job.frames))

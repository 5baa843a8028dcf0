"""The endpoints that take a picture and the command line's settings, and return the video or its job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import Parameter, Signature
from typing import Any

from gradio.data_classes import FileData

from app.jobs.job import Job, NoSuchJob
from app.jobs.service import JobService
from app.jobs.storage.trouble import TROUBLE
from app.ui.calls.jobs import Records
from app.ui.calls.serve import CallLimiter, Endpoint, refusal, signed
from app.ui.catalogue import Catalogue
from app.ui.pictures import upload_path, upload_paths
from diffusers_helper.errors import LongtakeError
from diffusers_helper.request import FILES, PICTURES, SETTINGS, TIMED_PICTURES

MOST_WAITING = 500  # each holds a connection, and a process may commonly have 1024 of them
MOST_TAKEN_IN = 1000
_LOOK_SECONDS = 0.2
_LOOK_SECONDS_A_CALL = 0.01  # many calls look more rarely each
_WAIT = "wait"  # whether the job waits for a user after each section
_GENERATE = "Make a video from a prompt, a picture or both. Wait for its turn, and return the finished MP4."
_ADD = "Put a new job into the queue, and return its record without waiting for it."


class _Calls:
    """The calls of both endpoints. Jobs are stored at once; a bounded number of calls waits for them."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self._taken_in = CallLimiter(MOST_TAKEN_IN)
        self._waiting = list[asyncio.Event]()  # each is set if its call has to give way

    async def store(self, settings: dict[str, Any], *, waits: bool) -> Job:
        async with self._taken_in.place():
            for path in filter(None, (settings[name] for name in PICTURES)):
                await self._catalogue.planner.pictures.prepare(path)
            async with self._taken_in.threads:
                return await asyncio.to_thread(self._catalogue.submit, self._service, settings, waits=waits)

    async def wait(self, job: Job) -> Job:
        """Return the job once it is over or interrupted. Of too many calls, the first comer gives way."""
        # A caller that is gone would hold its place until its job ends, so the newcomer stays.
        lost = asyncio.Event()
        self._waiting.append(lost)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.pop(0).set()
        try:
            while not job.is_over and job.state != "interrupted":
                with suppress(TimeoutError):
                    pause = _LOOK_SECONDS + _LOOK_SECONDS_A_CALL * len(self._waiting)
                    await asyncio.wait_for(lost.wait(), pause)
                    raise LongtakeError(
                        f"Job {job.id} is stored and will be made, but {MOST_WAITING} later calls wait too.",
                        f"Its video will be on the page, and in the outputs folder as {job.id}/video.mp4.",
                    )
                job = await asyncio.to_thread(self._look_at, job)
        finally:
            if not lost.is_set():
                self._waiting.remove(lost)
        return job

    def _look_at(self, job: Job) -> Job:
        try:
            return self._service.job(job.id)
        except NoSuchJob:  # a user removed it
            raise
        except (LongtakeError, *TROUBLE):  # as when the folder is missing for a moment
            return job


def endpoints(service: JobService, catalogue: Catalogue) -> list[Endpoint]:
    """Return the endpoints `/generate` and `/jobs_add`. A job continues even if its caller is gone."""
    calls, records = _Calls(service, catalogue), Records(service, catalogue)

    async def generate(job: Job) -> dict[str, Any]:
        return _video(await calls.wait(job))

    async def add(job: Job) -> dict[str, Any]:
        return records.of(job)

    parameters = _parameters(catalogue)
    video, record = (Signature(parameters, return_annotation=one) for one in (FileData, dict[str, Any]))
    # Jobs have their own queue: a call that waits in gradio's must not hold up another.
    return [
        Endpoint("generate", _endpoint(calls, video, generate), _GENERATE, is_queued=True),
        Endpoint("jobs_add", _endpoint(calls, record, add), _ADD, is_queued=True),
    ]


def _endpoint(
    calls: _Calls, signature: Signature, answer: Callable[[Job], Awaitable[dict[str, Any]]]
) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def endpoint(*values: object, **named: object) -> Any:
        given = signature.bind(*values, **named)
        given.apply_defaults()
        settings = dict(given.arguments)
        waits = settings.pop(_WAIT)
        try:
            settings |= upload_paths(settings)
            settings["video"] = upload_path(settings["video"], "video")
            return await answer(await calls.store(settings, waits=waits))
        except LongtakeError as error:
            raise refusal(error) from error

    return signed(endpoint, signature)


def _parameters(catalogue: Catalogue) -> list[Parameter]:
    """Return the settings as parameters. Pictures are uploads; what suits a model defaults to its own."""
    own = catalogue.info(catalogue.first).default_settings
    types: dict[str, Any] = (
        {
            name: setting.kind | None if setting.is_optional or name in own else setting.kind
            for name, setting in SETTINGS.items()
        }
        | dict.fromkeys(FILES, FileData | None)
        | {TIMED_PICTURES: dict[str, Any] | None}
    )
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    defaults |= {**dict.fromkeys(own), "model": catalogue.first, **dict.fromkeys((*FILES, TIMED_PICTURES))}
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(name, kind, default=defaults[name], annotation=types[name]) for name in SETTINGS]
    parameters.append(Parameter(_WAIT, kind, default=False, annotation=bool))
    return parameters


def _video(job: Job) -> dict[str, Any]:
    if job.state == "finished" and job.video is not None:
        return {"path": str(job.video), "meta": {"_type": "gradio.FileData"}}
    if job.state in ("failed", "interrupted"):
        raise LongtakeError(job.message, job.remedy)
    raise LongtakeError("The job was ended before its video was finished.", "Start it again.")

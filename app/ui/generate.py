"""The endpoints that take the settings of the command line and pictures from programs."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature
from typing import Any

from gradio.data_classes import FileData

from app.jobs.job import Job, NoSuchJob
from app.jobs.service import JobService
from app.jobs.storage.trouble import TROUBLE
from app.ui.api import Endpoint, as_gradio_error
from app.ui.catalogue import Catalogue
from app.ui.pictures import upload_path, upload_paths
from app.ui.queue.records import Record, Records
from diffusers_helper.conditions.times import time_notes
from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.registry import model_family
from diffusers_helper.request import FILES, FINISHING, SETTINGS, TIMED_PICTURES

_LOOK_SECONDS = 0.3
_KIND = Parameter.POSITIONAL_OR_KEYWORD
_WAIT = "wait"  # whether the job waits for a user after each section
_GENERATE = "Make a video from a prompt, a picture or both. Wait for its turn, and return the finished MP4."
_ADD = "Put a new job into the queue, and return its record without waiting for it."


def generate_endpoints(service: JobService, catalogue: Catalogue) -> list[Endpoint]:
    """Return `/generate` and `/jobs_add`. A job continues even if its caller is gone."""
    records = Records(service, catalogue)

    async def store(settings: dict[str, Any]) -> Job:
        waits = settings.pop(_WAIT)
        settings |= upload_paths(settings)
        settings["video"] = upload_path(settings["video"], "video")
        return await asyncio.to_thread(catalogue.submit, service, settings, waits=waits)

    async def generate(settings: dict[str, Any]) -> dict[str, Any]:
        return _video(await finished(service, await store(settings)))

    async def add(settings: dict[str, Any]) -> Record:
        job = await store(settings)
        return records.of(job) | {"notes": time_notes(job.request, model_family(job.request.model))}

    return [
        Endpoint(_with_settings(generate, catalogue, FileData), "generate", _GENERATE, is_queued=True),
        Endpoint(_with_settings(add, catalogue, Record), "jobs_add", _ADD, is_queued=True),
    ]


async def finished(service: JobService, job: Job) -> Job:
    while not job.is_over and job.state != "interrupted":
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            job = await asyncio.to_thread(service.job, job.id)
        except NoSuchJob:  # a user removed it
            raise
        except (LongtakeError, *TROUBLE):  # as when the folder is missing for a moment
            continue
    return job


def _with_settings(
    call: Callable[[dict[str, Any]], Awaitable[Any]], catalogue: Catalogue, result: Any
) -> Callable[..., Awaitable[Any]]:
    """Return a call that takes each setting as an argument of its own, in their order."""
    parameters = _parameters(catalogue)
    signature = Signature(parameters, return_annotation=result)

    async def endpoint(*values: object, **named: object) -> Any:
        bound = signature.bind(*values, **named)
        bound.apply_defaults()
        with as_gradio_error(list(signature.parameters)):
            return await call(dict(bound.arguments))

    # Gradio reads names, defaults and the result's type from the signature, and other types from annotations.
    endpoint.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    endpoint.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return endpoint


def _parameters(catalogue: Catalogue) -> list[Parameter]:
    """Return the settings as parameters. Pictures are uploads; what suits a model defaults to its own."""
    of_model = catalogue.info(catalogue.first).default_settings
    parameters = list[Parameter]()
    for name, setting in SETTINGS.items():
        kind: Any = setting.kind | None if setting.is_optional or name in of_model else setting.kind
        default = None if name in of_model else catalogue.first if name == "model" else setting.default
        if name in FILES or name == TIMED_PICTURES:
            kind, default = (FileData if name in FILES else dict[str, Any]) | None, None
        if name not in FINISHING:
            parameters.append(Parameter(name, _KIND, default=default, annotation=kind))
    return [*parameters, Parameter(_WAIT, _KIND, default=False, annotation=bool)]


def _video(job: Job) -> dict[str, Any]:
    if job.state == "finished" and job.video is not None:
        return {"path": str(job.video), "meta": {"_type": "gradio.FileData"}}
    if job.state in ("failed", "interrupted"):
        raise LongtakeError(job.message, job.remedy)
    raise LongtakeError("The job was ended before its video was finished.", "Start it again.")

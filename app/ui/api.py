"""The one endpoint for programs. It takes what the command line takes and returns the finished video."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.pictures import picture_path
from diffusers_helper.errors import LongtakeError
from diffusers_helper.request import SETTINGS

_POLL_SECONDS = 0.2
_DESCRIPTION = "Makes a video that starts with a picture. Waits for its turn and returns the finished MP4."


def add_endpoint(service: JobService, catalogue: Catalogue) -> None:
    """Add `/generate` to the page that is being built."""
    gr.api(
        endpoint(service, catalogue),
        api_name="generate",
        api_description=_DESCRIPTION,
        concurrency_limit=None,  # the queue is ours: a waiting call must not hold up another
    )


def endpoint(service: JobService, catalogue: Catalogue) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return the endpoint's function. A call that is given up does not end its job."""
    signature = _signature(catalogue.preselected)

    async def generate(*values: object, **named: object) -> Any:
        given = signature.bind(*values, **named)
        given.apply_defaults()
        try:
            settings = {**given.arguments, "image": picture_path(given.arguments["image"])}
            job = await asyncio.to_thread(catalogue.submit, service, settings)
            while not (job.is_over or job.is_resumable):
                await asyncio.sleep(_POLL_SECONDS)
                job = service.job(job.id)
            return _video(job)
        except LongtakeError as error:
            raise gr.Error(str(error), print_exception=False) from error

    # Gradio reads names, defaults and what is returned from the first, the parameters' types from the second.
    generate.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    generate.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    return generate


def _signature(preselected: str) -> Signature:
    """Return the parameters: the settings, but for a picture that is sent along and the model's own order."""
    types: dict[str, Any] = {
        name: setting.kind | None if setting.is_optional else setting.kind
        for name, setting in SETTINGS.items()
    } | {"image": FileData | None, "mode": str | None}
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    defaults |= {"mode": None, "model": preselected}
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(name, kind, default=defaults[name], annotation=types[name]) for name in SETTINGS]
    return Signature(parameters, return_annotation=FileData)


def _video(job: Job) -> dict[str, Any]:
    if job.state == "finished" and job.video is not None:
        return {"path": str(job.video), "meta": {"_type": "gradio.FileData"}}
    if job.state in ("failed", "interrupted"):
        raise LongtakeError(job.message, job.remedy)
    raise LongtakeError("The job was ended before its video was finished.", "Start it again.")

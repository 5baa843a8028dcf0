"""The one endpoint for programs. It takes what the command line takes and returns the finished video."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.pictures import picture_path
from diffusers_helper.errors import LongtakeError
from diffusers_helper.request import GenerationRequest

# No `from __future__ import annotations` here: gradio reads the endpoint's types from its signature.

_POLL_SECONDS = 0.2
_DESCRIPTION = "Makes a video that starts with a picture. Waits for its turn and returns the finished MP4."


def add_endpoint(service: JobService, catalogue: Catalogue) -> None:
    """Adds `/generate` to the page that is being built."""
    gr.api(
        endpoint(service, catalogue),
        api_name="generate",
        api_description=_DESCRIPTION,
        concurrency_limit=None,  # the queue is ours: a waiting call must not hold up another
    )


def endpoint(service: JobService, catalogue: Catalogue) -> Callable[..., Awaitable[dict[str, Any]]]:
    """The endpoint's function. A call that is given up does not end its job."""
    preselected = catalogue.preselected

    async def generate(
        image: FileData | None = None,
        prompt: str = "",
        negative: str = "",
        seconds: float = 5.0,
        seed: int = 31337,
        steps: int = 25,
        mode: str | None = None,
        resolution: int | None = None,
        guidance: float = 10.0,
        cfg: float = 1.0,
        cfg_rescale: float = 0.0,
        crf: int = 16,
        sampler: str = "unipc",
        model: str = preselected,
        preserved_gb: float | None = None,
        vram_cap_gb: float | None = None,
        vae_tile: int | None = None,
    ) -> FileData:
        given = locals()
        settings = {field.name: given[field.name] for field in fields(GenerationRequest)}
        try:
            settings["image"] = picture_path(image)
            job = await asyncio.to_thread(catalogue.submit, service, settings)
            while not job.is_over:
                await asyncio.sleep(_POLL_SECONDS)
                job = service.job(job.id)
            return _video(job)  # pyright: ignore[reportReturnType] - gradio wants it as plain data
        except LongtakeError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return generate  # pyright: ignore[reportReturnType]


def _video(job: Job) -> dict[str, Any]:
    if job.state == "finished" and job.video is not None:
        return {"path": str(job.video), "meta": {"_type": "gradio.FileData"}}
    if job.state == "failed":
        raise LongtakeError(job.message, job.remedy)
    raise LongtakeError("The job was ended before its video was finished.", "Start it again.")

"""A stage of a job, run again from the capture that a job with LONGTAKE_DEBUG=1 has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from diffusers_helper import pipeline
from diffusers_helper.conditions.pictures import write_captured
from diffusers_helper.errors import InputError
from diffusers_helper.job.setup import OpenJob, open_job
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.machine.local import Local
from diffusers_helper.miopen_fallback import MIOpenFallbackHandler
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.capture import Comparison, Missing, read_capture
from diffusers_helper.planning.variables import DEBUG_VARIABLE
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import START_PICTURE, GenerationRequest
from diffusers_helper.sampling.guidance import CleanLatents


def replay(
    file: Path, local: Local | None = None, convolutions: MIOpenFallbackHandler | None = None
) -> Comparison:
    """Run a captured stage again with the captured inputs, and compare the results.

    The stage gets the settings of the captured job, with the tiles and the precision that its VAE had. What
    stays on the device is planned anew, which does not change the result.

    Args:
        local: The settings of this machine; None for the defaults.
        convolutions: See `loading.loaders.load_models`.

    Raises:
        InputError: If the file is no capture of a stage with its tensors.
        LongtakeError: If the model is not here or cannot be loaded, or the stage fails in another way than
            when it was captured.
    """
    capture = read_capture(file)
    works = pipeline.WORK.values()
    stages = {"sample", "decode"}.union(*(one for work in works for one in (work.text_stages, work.encoders)))
    if capture.what not in stages:
        raise InputError(
            f"{file} is a capture of {capture.what}; expected one of the stages {', '.join(sorted(stages))}.",
            "Captures of ComfyUI's nodes are run again by python -m rocm_nodes replay.",
        )
    inputs = capture.inputs
    if isinstance(inputs.get("picture"), Missing):
        raise InputError(
            f"{file} holds no tensors, since they were too large; expected a capture with its inputs.",
            "Choose another capture.",
        )
    local = local or Local()
    local = replace(
        local, environ={name: text for name, text in local.environ.items() if name != DEBUG_VARIABLE}
    )
    with TemporaryDirectory(prefix="longtake-") as temporary:
        folder = Path(temporary)
        pictures = write_captured(inputs, JobFolder(folder))
        (folder / "lineage.json").write_text(json.dumps(inputs["lineage"]), encoding="utf-8")
        request = GenerationRequest.from_dict({**inputs["request"], **pictures})
        info = find_model(request.model, allow_folder=True)
        if absence := absence_of(info):
            raise NotHere(absence)
        job = open_job(
            request, load_models(info, convolutions=convolutions), folder=folder / "job", local=local,
            lineage=Lineage.read(folder / "lineage.json"),
        )  # fmt: skip
        with torch.inference_mode(), job.memory:
            return capture.compare(partial(_run, job, capture.what, inputs))


def _run(job: OpenJob, what: str, inputs: Mapping[str, Any]) -> Any:
    work = pipeline.WORK[job.family.name]
    if what in work.text_stages:
        return work.text_stages[what].run(job, what)
    if what in work.encoders:
        return work.encoders[what](job, inputs.get("of", START_PICTURE))
    section = job.sections[inputs["section"] - 1]
    if what == "sample":
        context = CleanLatents.restored(inputs["context"])
        return pipeline.denoise(job, section, work.restored(inputs["condition"]), context)
    return pipeline.decode(job, section, inputs["latents"])

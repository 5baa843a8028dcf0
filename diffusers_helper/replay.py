"""A stage of a job, run again from the capture that the job has written (`output.capture`)."""

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
from diffusers_helper.output.capture import Comparison, read_capture
from diffusers_helper.picture_names import with_pictures
from diffusers_helper.planning.variables import DEBUG_VARIABLE, ENCODINGS_VARIABLE
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import START_PICTURE, GenerationRequest
from diffusers_helper.sampling.guidance import CleanLatents

_SAMPLING = ("sample", "sample_low")


def replay(
    file: Path, local: Local | None = None, convolutions: MIOpenFallbackHandler | None = None
) -> Comparison:
    """The stage gets the captured job's settings, tiles and precision. No other job's encodings are used."""
    capture = read_capture(file)
    works = pipeline.WORK.values()
    stages = {*_SAMPLING, "decode"}.union(
        *(names for work in works for names in (work.text_stages, work.encoders))
    )
    if capture.name not in stages:
        raise InputError(
            f"{file} is a capture of {capture.name}; expected one of the stages {', '.join(sorted(stages))}.",
            "Captures of ComfyUI's nodes are run again by python -m rocm_nodes replay.",
        )
    if not capture.has_tensors:
        raise InputError(
            f"{file} holds no tensors, since they were too large; expected a capture with its inputs.",
            "Choose another capture.",
        )
    local = local or Local()
    local = replace(local, environ={**local.environ, DEBUG_VARIABLE: "0", ENCODINGS_VARIABLE: "0"})
    with TemporaryDirectory(prefix="longtake-") as temporary:
        job = _opened(capture.inputs, Path(temporary), local, convolutions)
        with torch.inference_mode(), job.loras, job.memory:
            job.load()
            return capture.compare(partial(_run, job, capture.name, capture.inputs))


def _opened(
    inputs: Mapping[str, Any], folder: Path, local: Local, convolutions: MIOpenFallbackHandler | None
) -> OpenJob:
    pictures = write_captured(inputs, JobFolder(folder))
    lineage = folder / "lineage.json"
    lineage.write_text(json.dumps(inputs["lineage"]), encoding="utf-8")
    request = GenerationRequest.from_dict(with_pictures(inputs["request"], pictures))
    info = find_model(request.model, allow_folder=True)
    if absence := absence_of(info):
        raise NotHere(absence)
    models = load_models(info, convolutions=convolutions)
    return open_job(request, models, folder=folder / "job", local=local, lineage=Lineage.read(lineage))


def _run(job: OpenJob, stage: str, inputs: Mapping[str, Any]) -> Any:
    work = pipeline.WORK[job.family.name]
    if stage in work.text_stages:
        return work.text_stages[stage].run(job, stage)
    if stage in work.encoders:
        return work.encoders[stage](job, inputs.get("of", START_PICTURE))
    section = job.sections[inputs["section"] - 1]
    if stage in _SAMPLING:
        context = CleanLatents.restored(inputs["context"])
        condition = work.condition_type.restored(inputs["condition"])
        state = inputs.get("state")
        return pipeline.denoise(job, section, condition, context, only_stage=stage, state=state)
    latents = inputs["latents"]
    begin = inputs.get("begin", section.decode_start - (latents.shape[2] - section.decode_latents))
    return pipeline.decode_from(job, section.number, begin, latents)

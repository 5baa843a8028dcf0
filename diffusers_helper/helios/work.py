"""Helios at work: its encoders, its guided denoiser over packed history, and its sampling by the scheduler.

This module is a `job.work.Work`; `families.family.HELIOS` has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from diffusers import HeliosTransformer3DModel
from PIL import Image
from torch import Tensor

from diffusers_helper.conditions.timeline import words_of
from diffusers_helper.families.helios import SECTION_FRAMES
from diffusers_helper.families.packing import Section
from diffusers_helper.helios.encoders import encode_states, mixed
from diffusers_helper.helios.guidance import HeliosCondition, HeliosDenoiser
from diffusers_helper.helios.history import Appender, SectionHistory
from diffusers_helper.helios.schedule import (
    flat_levels,
    is_pyramid,
    pyramid,
    renewed,
    sample_flat,
    sample_pyramid,
    times_of,
)
from diffusers_helper.job.original import Original
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Sample, TextStage
from diffusers_helper.request import START_PICTURE, GenerationRequest
from diffusers_helper.sampling.euler import sample_euler
from diffusers_helper.sampling.schedule import Purpose, levels_for, noise_for, tokens_of
from diffusers_helper.sampling.step_cache import Blocks
from diffusers_helper.vae.codec import encode_pictures

denoiser = HeliosDenoiser
texts: Mapping[str, TextStage] = {"text": TextStage("text_encoder", "tokenizer", "states", encode_states)}
# What precedes a video has noise of a level in this range, so that mistakes in it weigh less.
_LEAST_NOISE, _MOST_NOISE = 0.111, 0.135
_START, _PREFIX, _BEFORE = "start", "prefix", "before"


def latents(job: OpenJob) -> dict[str, Tensor]:
    """Encode the start picture or the video that is continued, and return the latents by name.

    A section sees them with noise, as in the training. They depend on the seed.
    """
    found: dict[str, Tensor] = {}
    if START_PICTURE in job.pictures.fitted:
        found[_START] = _latent(job)
        if job.original:
            first = Image.fromarray(next(job.original.frames()))
            prefix, before = _encoded(job, [first], "first"), _tail(job, job.original)
        else:
            # The history of a video that begins with a picture is a video in which nothing moves.
            still = [job.pictures.fitted[START_PICTURE]] * SECTION_FRAMES
            prefix, before = found[_START], _encoded(job, still, "still")[:, :, -1:]
        found |= {_PREFIX: _noisy(job, prefix, 0), _BEFORE: _noisy(job, before, 1)}
    job.note_vae(0)
    return found


def visions(job: OpenJob) -> dict[str, Tensor]:
    """Return nothing, since Helios sees a picture only by its latent."""
    return {}


def _latent(job: OpenJob, of: str = START_PICTURE) -> Tensor:
    """Encode the picture of a setting with the VAE, and return its latent."""
    work = partial(_encoded, job, [job.pictures.fitted[of]], "start_latent")
    return job.captured("vae_encode", work, of=of)


def _encoded(job: OpenJob, frames: Sequence[Image.Image], purpose: Purpose, number: int = 0) -> Tensor:
    """Encode 4 n + 1 frames, and return a sample of their latents."""
    count = (len(frames) - 1) // job.family.latent_frames + 1
    noise = noise_for(job.root.seed, purpose, number, job.latents_shape(count))
    return encode_pictures(job.vae, frames, noise, job.pieces("vae_encode"), job.cancel)


def _tail(job: OpenJob, original: Original) -> Tensor:
    """Encode the end of the video that is continued, in sections as Helios makes them."""
    tail = original.tail
    begins = range(len(tail) % SECTION_FRAMES if len(tail) > SECTION_FRAMES else 0, len(tail), SECTION_FRAMES)
    parts = (tail[begin : begin + SECTION_FRAMES] for begin in begins)
    return torch.cat([_encoded(job, part, "tail", n) for n, part in enumerate(parts)], dim=2)


def _noisy(job: OpenJob, clean: Tensor, number: int) -> Tensor:
    """Return latents with noise, whose level is drawn for each frame."""
    drawn = levels_for(job.root.seed, "levels", number, clean.shape[2]).view(1, 1, -1, 1, 1)
    level = _LEAST_NOISE + drawn * (_MOST_NOISE - _LEAST_NOISE)
    return level * noise_for(job.root.seed, "blur", number, tuple(clean.shape)) + (1 - level) * clean


encoders: Mapping[str, Callable[..., Any]] = {"vae_encode": _latent}


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> HeliosCondition:
    """Return the condition for a section, given the result of `encode`."""
    request = job.lineage.request_for(section.number, job.request)
    states = {text: encodings[f"states_{n}"] for n, text in enumerate(job.texts)}
    words = words_of(section.number, job.request, job.lineage, job.family)
    negative = mixed([(states[request.negative], 1.0)]) if len(request.texts) > 1 else None
    times = times_of(job.models.part("scheduler"))
    positive = mixed([(states[text], share) for text, share in words])
    return HeliosCondition(
        positive=positive, negative=negative, cfg=request.cfg, cfg_rescale=request.cfg_rescale, times=times
    )


def restored(condition: Mapping[str, Any]) -> HeliosCondition:
    """Return the condition of a section from a capture."""
    times = tuple((begin, growth) for begin, growth in condition["times"])
    return HeliosCondition(**{**condition, "times": times})


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> SectionHistory:
    """Return the history before the first section; without a picture or a video, there is none."""
    before = encodings.get(_BEFORE)
    return SectionHistory(
        torch.zeros(job.latents_shape(0)) if before is None else before, encodings.get(_PREFIX)
    )


def joiner(job: OpenJob) -> Appender:
    """Return the joiner of decoded sections."""
    return Appender()


def blocks(network: HeliosTransformer3DModel, noise: Tensor) -> Blocks:
    """Return the transformer's blocks, as a step cache sees them, for noise of this shape."""
    return Blocks([*network.blocks], tokens_of(noise.shape), _modulated, returned=1)


def _modulated(block: Any, hidden: Tensor, text: Tensor, time: Tensor, *_: object) -> Tensor:
    """Return the input of a block's attention."""
    shift, scale = (block.scale_shift_table.unsqueeze(0) + time.float())[:, :, :2].unbind(2)
    return block.norm1(hidden.float()) * (1 + scale) + shift


def sampler(job: OpenJob, section: Section, request: GenerationRequest) -> Sample:
    """Return the sampler of a section."""
    shape, shift = job.latents_shape(job.family.window), request.shift or job.models.info.shift or 0.0
    scheduler = renewed(job.models.part("scheduler"), shift)
    steps = job.models.info.steps_in(section.number, request.steps)
    if is_pyramid(scheduler):

        def draw(stage: int, size: tuple[int, int]) -> Tensor:
            return noise_for(request.seed, "stage", scheduler.config.stages * section.number + stage, size)

        return partial(sample_pyramid, stages=pyramid(scheduler, steps, shape, draw, shift=shift))
    if request.sampler == "euler":
        return partial(sample_euler, sigmas=flat_levels(scheduler, steps, shape, shift))
    return partial(sample_flat, scheduler=scheduler, steps=steps, shift=shift)

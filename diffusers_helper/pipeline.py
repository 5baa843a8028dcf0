"""FramePack's loop, from a picture and a prompt to a video.

Zhang and Agrawala 2025, "Packing Input Frame Context in Next-Frame Prediction Models for Video Generation"
(arXiv 2504.12626). The prompt and the picture are encoded once. Then the video is made in sections, in an
order that `packing` plans. For each section, noise is denoised, conditioned on the picture and the clean
history, which is packed more densely the farther away it is. The section's latents are decoded together with
those of the neighbouring section, and the frames in which both decodes overlap are blended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Event
from diffusers_helper.families.packing import WINDOW, Section
from diffusers_helper.framepack.encoders import TextCondition, encode_pooled, encode_states, encode_vision
from diffusers_helper.framepack.guidance import CLEAN_LATENTS, Condition, Context, GuidedDenoiser
from diffusers_helper.framepack.history import LatentHistory
from diffusers_helper.job.setup import OpenJob, open_job
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.output.frames import FrameBlender, write_thumbnail
from diffusers_helper.output.previews import LatentColours, Preview
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling import StepInfo, flow_sigmas, sampler, shift_of
from diffusers_helper.sampling.seeds import noise_for
from diffusers_helper.vae.codec import decode_latents, encode_picture
from diffusers_helper.vae.engine import Part


@dataclass(frozen=True, slots=True)
class Result:
    """A finished video.

    Attributes:
        video: The path of the video.
        frames: The number of frames.
        latents: (1, 16, frames / 4 rounded up, height / 8, width / 8), in fp32 on the CPU.
    """

    video: Path
    frames: int
    latents: Tensor


def generate(
    request: GenerationRequest,
    models: Models,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    cancel: CancelToken | None = None,
    resume_from: Path | None = None,
    folder: Path | None = None,
    local: Local | None = None,
    lineage: Lineage | None = None,
) -> Result:
    """Make one video.

    On the CPU, the same request with the same model gives the same bytes.

    Args:
        request: The settings of the video.
        models: The request's model, which need not be loaded yet.
        on_event: A function that is called in this thread with each event, from JobStarted to Finished or
            Cancelled.
        cancel: The token that ends the job between two blocks of a network.
        resume_from: The folder of an unfinished job, whose finished sections are reused.
        folder: The folder for the job's files; if None, `resume_from`, or a new one in `outputs/`.
        local: The settings of this machine; None for the defaults.
        lineage: The origin of the first sections; None for the one in the job's folder, if there is one.

    Raises:
        InputError: If the picture, prompt, mode, cap or folder cannot be used. Nothing was loaded then.
        GenerationCancelled: If the job was cancelled, after the Cancelled event. The video so far is in the
            folder.
        LongtakeError: If a part of the model cannot be loaded, the device's memory does not suffice, or
            `resume_from` belongs to another request.
    """
    job = open_job(
        request, models, on_event, cancel or CancelToken(), resume_from, folder, local or Local(), lineage
    )
    try:
        with torch.inference_mode(), job.loras, job.memory:
            checkpoints = job.load()
            encodings = checkpoints.encodings(otherwise=partial(encode, job))
            start = encodings["start"]
            preview = Preview(job.folder.preview, LatentColours(job.picture, start))
            history, blender = LatentHistory(request.mode, start), FrameBlender(request.mode)
            for section in job.sections:
                context = history.context(section)
                latents = checkpoints.section(
                    section.number, otherwise=partial(denoise, job, section, encodings, context, preview)
                )
                history.add(latents, section)
                if section.number < job.video.sections:
                    continue  # an earlier run has written this section and the next one
                frames = decode(job, section, *history.to_decode(section))
                final, pending = blender.add(frames, section)
                write(job, section, frames, final, pending)
                del frames, final, pending  # they would take memory while the next section is sampled
        figures = {**job.memory.usage(), "advice": job.memory.advice()}
        return Result(job.report.finished(figures), job.video.frames, history.latents)
    except GenerationCancelled:
        job.report.cancelled()
        raise


# The stages. Each has its network on the device, and is repeated with a smaller plan if memory runs out.


def encode(job: OpenJob) -> dict[str, Tensor]:
    """Encode the prompts and the picture, and return the encodings by name, on the host."""
    prompts = job.lineage.texts(job.request)
    texts = text_states(job, prompts) | text_vectors(job, prompts)
    start = start_latent(job)
    job.note_vae(0)
    return texts | {"start": start, "vision": vision_states(job)}


def text_states(job: OpenJob, prompts: Sequence[str]) -> dict[str, Tensor]:
    """Return the large text encoder's states of each prompt's tokens."""
    tokenizer = job.models.part("tokenizer")

    def states(llama: Any) -> dict[str, Tensor]:
        return {f"states_{n}": to_host(encode_states(llama, tokenizer, p)) for n, p in enumerate(prompts)}

    return job.captured("text", partial(job.memory.run, "text", states), prompts=prompts)


def text_vectors(job: OpenJob, prompts: Sequence[str]) -> dict[str, Tensor]:
    """Return the small text encoder's vector of each prompt."""
    tokenizer = job.models.part("tokenizer_2")

    def pooled(clip: Any) -> dict[str, Tensor]:
        return {f"pooled_{n}": to_host(encode_pooled(clip, tokenizer, p)) for n, p in enumerate(prompts)}

    return job.captured("text_2", partial(job.memory.run, "text_2", pooled), prompts=prompts)


def start_latent(job: OpenJob) -> Tensor:
    """Encode the picture with the VAE, and return its latent."""
    seed = job.lineage.root(job.request).seed
    noise = noise_for(seed, "start_latent", 0, job.latents_shape(1))
    pieces = job.pieces("vae_encode")
    return job.captured(
        "vae_encode", partial(encode_picture, job.vae, job.picture, noise, pieces, job.cancel), noise=noise
    )


def vision_states(job: OpenJob) -> Tensor:
    """Return the vision encoder's states of the picture."""
    extractor = job.models.part("feature_extractor")

    def vision(siglip: Any) -> Tensor:
        return to_host(encode_vision(siglip, extractor, job.picture))

    return job.captured("vision", partial(job.memory.run, "vision", vision))


def condition_of(job: OpenJob, number: int, encodings: dict[str, Tensor]) -> Condition:
    """Return the condition for a section, given the result of `encode`."""
    request, texts = job.lineage.request_for(number, job.request), job.lineage.texts(job.request)
    places = [texts.index(text) for text in request.texts]
    positive, *negative = (TextCondition(encodings[f"states_{n}"], encodings[f"pooled_{n}"]) for n in places)
    return Condition(
        positive, negative[0] if negative else None, encodings["vision"],
        request.guidance, request.cfg, request.cfg_rescale,
    )  # fmt: skip


def denoise(
    job: OpenJob, section: Section, encodings: dict[str, Tensor], context: Context, preview: Preview
) -> Tensor:
    """Sample a section's clean latents from noise, and return them (1, 16, W, h, w) on the host.

    Raises:
        LongtakeError: If the transformer overflows even in fp32.
    """
    request = job.lineage.request_for(section.number, job.request)
    condition = condition_of(job, section.number, encodings)
    noise = noise_for(request.seed, "noise", section.number, job.latents_shape(WINDOW))
    num_tokens = WINDOW * (noise.shape[-2] // 2) * (noise.shape[-1] // 2)
    sigmas = flow_sigmas(request.steps, job.models.info.shift or shift_of(num_tokens))

    def on_step(info: StepInfo) -> None:
        job.cancel.check()
        picture = preview.show(info.x0, section.number, info.step)
        job.report.step(section, info.step, info.steps, picture)

    def sample(transformer: Any) -> Tensor:
        denoiser = GuidedDenoiser(transformer, condition, context)
        noisy = noise.to(job.models.device)
        return to_host(sampler(request.sampler)(denoiser, noisy, sigmas, on_step=on_step))

    return job.captured(
        "sample",
        partial(job.memory.run, "sample", sample, section.number),
        section=section.number,
        encodings=encodings,
        context={name: getattr(context, name) for name in CLEAN_LATENTS},
    )


def decode(job: OpenJob, section: Section, latents: Tensor, begin: int) -> Tensor:
    """Decode a section with the one made before it, and return the frames (T, H, W, 3), about -1 to 1.

    Args:
        job: The job.
        section: The section.
        latents: The latents of both.
        begin: The place of the first of them.
    """
    part, pieces = Part(section.number, begin), job.pieces("decode", section)
    return job.captured(
        "decode",
        partial(decode_latents, job.vae, latents, part, pieces, job.cancel),
        section=section.number,
        latents=latents,
        begin=begin,
    )


def write(job: OpenJob, section: Section, frames: Tensor, final: np.ndarray, pending: np.ndarray) -> None:
    """Add a section's final and pending frames to the video, and report the section."""
    thumbnail = write_thumbnail(job.folder.thumbs, section, frames, job.request.mode)
    # The last section of an earlier run is in the video already; it was decoded only to blend the next one.
    if section.number > job.video.sections:
        job.report.stage("write", section)
        job.note_vae(section.number)
        job.video.add_section(final, pending)
    job.memory.save()
    if job.video.latest is not None:  # a branch has no video of its own until its first new section
        job.report.section(section, thumbnail)

"""The loop that makes a long video section by section, from a prompt and usually a picture.

Zhang and Agrawala 2025, "Packing Input Frame Context in Next-Frame Prediction Models for Video Generation"
(arXiv 2504.12626). What conditions the video is encoded once. Then the video is made in sections, in an order
that the model's family plans. For each section, noise is denoised, conditioned on the section's condition and
on the clean history. The section's latents are decoded, and its frames are joined to those made before.

What a family brings, such as FramePack's history of three densities and its guidance, is in `WORK`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.attention.attending import attending
from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.picture import plain_png
from diffusers_helper.conditions.timeline import drafts_of, seed_of, weights_of
from diffusers_helper.errors import GenerationCancelled
from diffusers_helper.events import Event
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.helios import HELIOS
from diffusers_helper.families.packing import Section, decode_work
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.files import write_atomic
from diffusers_helper.framepack import work as framepack
from diffusers_helper.helios import work as helios
from diffusers_helper.job.setup import OpenJob, open_job
from diffusers_helper.job.work import LatentsSoFar, Work, encode
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.output.checkpoints import Checkpoints
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.metadata import png_chunks
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.schedule import noise_for
from diffusers_helper.vae.codec import decode_latents
from diffusers_helper.vae.engine import Part

WORK: dict[str, Work] = {FRAMEPACK.name: framepack, HELIOS.name: helios}


@dataclass(frozen=True, slots=True)
class Result:
    """A finished video.

    Attributes:
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
        request, models, on_event=on_event, cancel=cancel, resume_from=resume_from, folder=folder,
        local=local, lineage=lineage,
    )  # fmt: skip
    work = WORK[job.family.name]
    try:
        with torch.inference_mode(), job.loras, job.memory:
            checkpoints = job.load()
            encodings = checkpoints.encodings(otherwise=partial(encode, job, work))
            history, join = work.history(job, encodings), work.joiner(job)
            for section in sample_sections(job, checkpoints, encodings, history):
                if section.number < job.video.sections:
                    continue  # an earlier run has written this section and the next one
                final, pending = join(decode(job, section, history.to_decode(section)), section)
                write(job, section, final, pending)
                del final, pending  # they would take memory while the next section is sampled
        if request.step_cache == OFF:  # its steps would say little about those of other jobs
            job.memory.keep_times(job.report.step_seconds, decode_work(job.sections, request.vae_chunk))
        return Result(job.report.finished(job.memory.usage()), job.video.frames, history.latents)
    except GenerationCancelled:
        job.report.cancelled()
        raise


def sample_sections(
    job: OpenJob, checkpoints: Checkpoints, encodings: Mapping[str, Tensor], history: LatentsSoFar
) -> Iterator[Section]:
    """Sample what no earlier run has sampled, and yield each section after it was added to the history."""
    if job.pictures.start:
        job.preview.fit(job.pictures.start, encodings["start"])
    drafts: dict[int, Tensor] = {}
    for section in job.sections:
        sampled = partial(sample, job, section, encodings, history, drafts)
        history.add(checkpoints.section(section.number, otherwise=sampled), section)
        yield section


def sample(
    job: OpenJob, section: Section, encodings: Mapping[str, Tensor], history: LatentsSoFar,
    drafts: dict[int, Tensor],
) -> Tensor:  # fmt: skip
    """Sample a section after the drafts that it needs, and return its latents as `denoise` does.

    Where the words change in inverted order, the section before the change is drafted as if it were the last.
    What comes after the change then begins with its last latent, and not with the start picture. New drafts
    are added to the others, by their places in the video.
    """
    work, own = WORK[job.family.name], job.lineage.request_for(section.number, job.request)
    places = drafts_of(section.number, own, job.family)
    by_place = {one.video_position: one for one in job.sections}
    missing = [place for place in places if place not in drafts]

    def sampled(one: Section, history: LatentsSoFar, run: int) -> Tensor:
        context, before = history.context(one), [place for place in places if place < one.video_position]
        if before:
            context = replace(context, start=drafts[before[-1]])
        return denoise(
            job, one, work.condition(job, one, encodings), context, (section, run, len(missing) + 1)
        )

    for run, place in enumerate(missing):
        drafts[place] = sampled(by_place[place], work.history(job, encodings), run)[:, :, -1:]
    return sampled(section, history, len(missing))


# The stages. Each has its network on the device, and is repeated with a smaller plan if memory runs out.


def denoise(
    job: OpenJob, section: Section, condition: Any, context: Any,
    within: tuple[Section, int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Sample a section's clean latents from noise, and return them (1, C, W, h, w) on the host.

    Args:
        condition: What conditions it, in the form of the family's `Work`.
        context: What it sees of the other sections.
        within: The section that it is sampled for, if it may be a draft, with the numbers of the runs before
            and of all runs.

    Raises:
        LongtakeError: If the transformer overflows even in fp32.
    """
    work, request = WORK[job.family.name], job.lineage.request_for(section.number, job.request)
    where = section.number, request, job.family
    seed = seed_of(*where)
    job.loras.weigh(weights_of(*where))
    noise = noise_for(seed, "noise", section.number, job.latents_shape(job.sections.window))
    shown, run, runs = within or (section, 0, 1)
    sampler = work.sampler(job, section, request)

    def sample_with(network: Any) -> Tensor:
        noisy = noise.to(job.models.device)
        with (
            attending(network, *job.memory.plans.attention),
            job.passes(request, network, work.blocks(network, noisy)) as passes,
        ):
            denoiser = work.denoiser(network, condition, context, passes)
            on_step = job.on_step(shown, passes, run, runs)
            return to_host(sampler(denoiser, noisy, on_step=on_step))

    return job.run("sample", sample_with, section, shown, condition=condition, context=context)


def decode(job: OpenJob, section: Section, latents: Tensor) -> Tensor:
    """Decode a section with the one made before it, and return the frames (T, H, W, 3), about -1 to 1.

    Args:
        latents: The latents of both, and before them any that only lead in, or behind them those of a video
            to which the section leads.
    """
    leads = job.original.frames_behind(section) if job.original else 0
    begin = section.begin - (0 if leads else latents.shape[2] - section.decode_latents)
    frames = decode_from(job, section.number, begin, latents)
    if leads:
        frames, latents = (
            frames[: section.decoded_frames + leads],
            latents[:, :, : section.decode_latents + 1],
        )
    else:
        frames = frames[len(frames) - section.decoded_frames :]
    job.preview.fit(Image.fromarray(to_uint8(frames[-1])), latents[:, :, -1:])
    job.report.decoded(section, frames)
    return frames


def decode_from(job: OpenJob, number: int, begin: int, latents: Tensor) -> Tensor:
    """Decode latents of a section, of which the first one has the place `begin` (see `Section.begin`)."""
    part, pieces = Part(number, begin), job.pieces("decode", number)
    work = partial(decode_latents, job.vae, latents, part, pieces, job.cancel)
    return job.captured("decode", work, section=number, begin=begin, latents=latents)


def write(job: OpenJob, section: Section, final: np.ndarray, pending: np.ndarray) -> None:
    """Add a section's final and pending frames to the video, and report the section."""
    # The last section of an earlier run is in the video already; it was decoded only to blend the next one.
    is_new = section.number > job.video.sections
    if is_new:
        job.report.stage("write", section.number)
        job.note_vae(section.number)
    if section.video_position == 0 and job.request.gives_picture:
        first = (final if len(final) else pending)[0]  # the next section is blended with it in a share of 0
        recipe = job.recipe(job.pictures.contents)
        chunks = png_chunks(recipe.to_json(), recipe.pictures)
        write_atomic(job.folder.first, plain_png(Image.fromarray(first), chunks))
    if is_new:
        job.video.add_section(final, pending, is_behind=section.is_closing)
    job.memory.save()
    if job.video.latest is not None:  # a branch has no video of its own until its first new section
        job.report.section(section)

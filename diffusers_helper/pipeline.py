"""The loop that makes a long video section by section, from a prompt and usually a picture.

Zhang and Agrawala 2025, "Packing Input Frame Context in Next-Frame Prediction Models for Video Generation"
(arXiv 2504.12626). What conditions the video is encoded once. Then sections are made in an order that the
model's family plans. Each is denoised from noise, conditioned on its condition and on the clean history, and
decoded, and its frames are joined to those made before. `WORK` has what a family brings for that.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.attention.blas import preferred_library
from diffusers_helper.attention.dispatch import use_attention_backend
from diffusers_helper.attention.fused import use_kernels
from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.picture_file import plain_png
from diffusers_helper.conditions.timeline import drafts_of, lora_weights_of, seed_of
from diffusers_helper.errors import GenerationCancelled, LongtakeError
from diffusers_helper.events import Event
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.helios import HELIOS
from diffusers_helper.families.packing import Section, decode_work
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.families.wan import WAN, WAN_A14B
from diffusers_helper.files import write_atomic
from diffusers_helper.framepack import work as framepack
from diffusers_helper.helios import work as helios
from diffusers_helper.job.setup import OpenJob, SectionRun, open_job
from diffusers_helper.job.work import LatentsSoFar, Sampler, Work, encode
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.output.checkpoints import Checkpoints, SavedSteps
from diffusers_helper.output.previews import LightDecoder, to_uint8
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.provenance.metadata import png_chunks
from diffusers_helper.request import LIGHT, OWN, GenerationRequest
from diffusers_helper.sampling.schedule import noise_for
from diffusers_helper.vae.codec import decode_latents
from diffusers_helper.vae.engine import VideoPart
from diffusers_helper.vae.passes import Progress
from diffusers_helper.wan import work as wan

WORK: dict[str, Work] = {
    FRAMEPACK.name: framepack,
    HELIOS.name: helios,
    WAN.name: wan,
    WAN_A14B.name: wan,
}


@dataclass(frozen=True, slots=True)
class Result:
    """A finished video, with its latents (1, 16, frames / 4 rounded up, height / 8, width / 8)."""

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
        on_event: Called in this thread with each event, from JobStarted to Finished or Cancelled.
        cancel: The token that ends the job between two blocks of a network.
        resume_from: The folder of an unfinished job, whose finished sections are reused.
        folder: The folder for the job's files; if None, `resume_from`, or a new one in `outputs/`.
        lineage: The origin of the first sections; None for the one in the job's folder, if there is one.
    """
    job = open_job(
        request, models, on_event=on_event, cancel=cancel, resume_from=resume_from, folder=folder,
        local=local, lineage=lineage,
    )  # fmt: skip
    work = WORK[job.family.name]
    try:
        library = preferred_library(job.memory.plans.blas)
        with torch.inference_mode(), library, job.loras, job.memory:
            checkpoints = job.load()
            encodings = checkpoints.encodings(compute=partial(encode, job, work))
            history = work.history(job, encodings)
            join = work.joiner(job)
            for section in made_sections(job, checkpoints, encodings, history):
                if is_written(job, section, checkpoints, history):
                    continue
                frames = decode_and_carry(job, section, checkpoints, history)
                final, pending = join(frames, section)
                write(job, section, final, pending)
                del frames, final, pending  # they would take memory while the next section is made
        if request.step_cache == OFF and request.decoder == OWN:  # others would say little about other jobs
            job.memory.keep_times(job.report.step_seconds, decode_work(job.sections, request.vae_chunk))
        return Result(job.report.finished(job.memory.usage()), job.video.frames, history.latents)
    except GenerationCancelled:
        job.report.cancelled()
        raise


def made_sections(
    job: OpenJob, checkpoints: Checkpoints, encodings: Mapping[str, Tensor], history: LatentsSoFar
) -> Iterator[Section]:
    """Yield each section once its latents are in the history, and in the job's folder."""
    if job.pictures.start:
        job.preview.fit(job.pictures.start, encodings["start"])
    drafts: dict[int, Tensor] = {}
    for section in job.sections:
        saved = checkpoints.saved_steps(section.number)
        make = partial(make_latents, job, section, encodings, history, drafts, saved)
        history.add(checkpoints.section(section.number, compute=make), section)
        yield section


def make_latents(
    job: OpenJob, section: Section, encodings: Mapping[str, Tensor], history: LatentsSoFar,
    drafts: dict[int, Tensor], saved: SavedSteps,
) -> Tensor:  # fmt: skip
    """Denoise a section after the drafts that it needs, and add these to `drafts`, by video index.

    Where the prompt changes in inverted order, the section before the change is drafted as if it were the
    last. What comes after the change then begins with its last latent instead of the start picture.
    """
    work = WORK[job.family.name]
    request = job.request_for(section.number)
    draft_indices = drafts_of(section.number, request, job.family)
    missing = [index for index in draft_indices if index not in drafts]
    section_by_index = {other.video_index: other for other in job.sections}
    runs = [*(section_by_index[index] for index in missing), section]
    for run, target in enumerate(runs, 1):
        seen = history if target is section else work.history(job, encodings)
        context = seen.context(target)
        if earlier := [drafts[index] for index in draft_indices if index < target.video_index]:
            context = replace(context, start=earlier[-1])
        condition = work.condition(job, target, encodings)
        latents = denoise(job, target, condition, context, SectionRun(section, run, len(runs)), saved)
        if target is section:
            break
        drafts[target.video_index] = latents[:, :, -1:]
    return latents


def denoise(
    job: OpenJob, section: Section, condition: Any, context: Any, run: SectionRun | None = None,
    saved: SavedSteps | None = None, only_stage: str = "", state: Any = None,
) -> Tensor:  # fmt: skip
    """Denoise a section's clean latents (1, C, W, h, w), on the host, from noise.

    Each stage has its network on the device, and is repeated with a smaller plan if memory runs out.

    Args:
        condition: What conditions the section, in the form of the family's `Work`.
        context: The clean latents that the section sees of the other sections.
        run: Which of the runs for a section this is; the only one for this section if None.
        saved: Where a sampler that can go on stores its state; it starts from the one that is there.
        only_stage, state: The only stage to run again, and what the one before it has returned.

    Raises:
        LongtakeError: If the transformer overflows even in fp32.
    """
    work = WORK[job.family.name]
    run = run or SectionRun(section)
    request = job.request_for(section.number)
    request = replace(request, seed=seed_of(section.number, request, job.family))
    job.loras.weigh(lora_weights_of(section.number, request, job.family))
    noise = noise_for(request.seed, "noise", section.number, job.latents_shape(len(section.indices.noisy)))
    options: dict[str, Any] = {}
    if saved and job.family.is_chain and request.step_cache == OFF:
        state = saved.read()
        options["on_state"] = saved.keep

    def on_device(sampler: Sampler, network: Any) -> Any:
        noisy = noise.to(job.models.device)
        with (
            use_attention_backend(network, *job.memory.plans.attention),
            use_kernels(network, job.memory.plans.request.kernels),
            job.passes(request, network, work.blocks(network, noisy)) as passes,
        ):
            denoiser = work.denoiser(network, condition, context, passes)
            result = sampler(denoiser, noisy, on_step=job.on_step(run, passes))
            if isinstance(result, Tensor):
                return to_host(result)
            return {name: to_host(tensor) for name, tensor in result.items()}

    inputs = {"section": section.number, "condition": condition, "context": context}
    for stage, sampler in work.samplers(job, section, request).items():
        if only_stage not in ("", stage):
            continue
        if job.family.is_chain:
            sampler = partial(sampler, start=state, **options)
            inputs["state"] = state
        state = job.run(stage, partial(on_device, sampler), run.section.number, **inputs)
    return state


def is_written(job: OpenJob, section: Section, checkpoints: Checkpoints, history: LatentsSoFar) -> bool:
    """Tell if an earlier run has written a section and stored all that the next one needs of it."""
    if section.number == job.video.sections and job.family.is_chain:
        history.carried = checkpoints.carried(section.number)
        return history.carried is not None
    return section.number < job.video.sections


def decode_and_carry(
    job: OpenJob, section: Section, checkpoints: Checkpoints, history: LatentsSoFar
) -> Tensor:
    frames = history.carry(decode(job, section, history.to_decode(section)), section)
    history.carried = checkpoints.carried(section.number, history.carried)
    return frames


def decode(job: OpenJob, section: Section, latents: Tensor) -> Tensor:
    """Decode a section, with the one before it and the edge of another video, to (T, H, W, 3) in -1 to 1."""
    num_extra_frames = job.original.num_extra_frames(section) if job.original else 0
    num_lead_latents = 0 if num_extra_frames else latents.shape[2] - section.decode_latents
    frames = decode_from(job, section.number, section.decode_start - num_lead_latents, latents)
    if num_extra_frames:
        frames = frames[: section.decoded_frames + num_extra_frames]
        latents = latents[:, :, : section.decode_latents + 1]
    else:
        frames = frames[len(frames) - section.decoded_frames :]
    job.preview.fit(Image.fromarray(to_uint8(frames[-1])), latents[:, :, -1:])
    job.report.decoded(section, frames)
    return frames


def decode_from(job: OpenJob, number: int, begin: int, latents: Tensor) -> Tensor:
    """Decode latents of a section, of which the first one is number `begin` (see `Section.decode_start`)."""
    part, pieces = VideoPart(number, begin), job.pieces("decode", number)
    work = partial(decode_latents, job.vae, latents, part, pieces, job.cancel)
    if job.request.decoder == LIGHT:
        light_work = partial(decode_lightly, job, latents, pieces)
        work = partial(job.memory.run, "decode", light_work, number)
    return job.captured("decode", work, section=number, begin=begin, latents=latents)


def decode_lightly(job: OpenJob, latents: Tensor, on_piece: Progress, _: Any) -> Tensor:
    """Decode latents as `decode_latents` does, by the decoder of the previews, within the plan of the VAE."""
    file = job.models.info.small_decoder_file
    decoder = file and LightDecoder.read(file, job.models.device)
    if not decoder:
        raise LongtakeError(
            f"The light decoder of model {job.models.info.name} is not on this machine.",
            "Get the model again, or choose the model's own `decoder`.",
            code="download",
        )

    job.models.convolutions.install(decoder)

    def on_latent(done: int, total: int) -> None:
        job.cancel.check()
        on_piece(done, total)

    return 2 * decoder.decode(latents, on_latent) - 1


def write(job: OpenJob, section: Section, final: np.ndarray, pending: np.ndarray) -> None:
    # The last section of an earlier run is in the video already; it was decoded only to blend the next one.
    is_new = section.number > job.video.sections
    if is_new:
        job.report.stage("write", section.number)
        job.note_vae(section.number)
    if section.video_index == 0 and (job.request.is_from_words or job.request.one_frame):
        first_frame = (final if len(final) else pending)[0]  # the next section does not change this frame
        recipe = job.recipe(job.pictures.contents)
        chunks = png_chunks(recipe.to_json(), recipe.pictures)
        write_atomic(job.folder.first, plain_png(Image.fromarray(first_frame), chunks))
    if is_new:
        job.video.add_section(final, pending, is_behind=section.is_closing)
    job.memory.save()
    if job.video.latest is not None:  # a branch has no video of its own until its first new section
        job.report.section(section)

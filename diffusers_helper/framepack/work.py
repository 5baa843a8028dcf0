"""FramePack's half that works on tensors: its encoders, its conditions, its history and its sampler.

This module is a `job.work.Work`; `families.framepack.FRAMEPACK` has the numbers.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from PIL import Image
from torch import Tensor

from diffusers_helper.conditions.footage import largest_encodable
from diffusers_helper.conditions.pictures import pictures_of, start_picture_of
from diffusers_helper.conditions.timeline import prompts_of
from diffusers_helper.families.packing import HISTORY, HISTORY_1X, Section
from diffusers_helper.files import sha256_of
from diffusers_helper.framepack.guidance import (
    FramePackCondition,
    FramePackDenoiser,
    TextCondition,
    encode_pooled,
    encode_states,
    encode_vision,
    mix_prompts,
)
from diffusers_helper.framepack.history import LatentHistory
from diffusers_helper.framepack.joining import FrameBlender
from diffusers_helper.job.original import Original
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Join, Sampler, TextStage, encode_pictures, latent_of
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.picture_names import timed_picture_name
from diffusers_helper.request import END_PICTURE, START_PICTURE, GenerationRequest
from diffusers_helper.sampling import sampler as sampler_named
from diffusers_helper.sampling.schedule import flow_sigmas, noise_for, shift_of, tokens_of
from diffusers_helper.sampling.step_cache import Blocks

denoiser = FramePackDenoiser
condition_type = FramePackCondition
text_stages: Mapping[str, TextStage] = {
    "text": TextStage("text_encoder", "tokenizer", "states", encode_states),
    "text_2": TextStage("text_encoder_2", "tokenizer_2", "pooled", encode_pooled),
}
_TAIL = "tail"


def latents(job: OpenJob) -> dict[str, Tensor]:
    names = [name for name in job.pictures.fitted if name != END_PICTURE or job.request.mode == "inverted"]
    encode_once = cache(partial(latent_of, job))
    encodings = {_encoding_name("start", name): encode_once(job.pictures.first_equal(name)) for name in names}
    if not job.pictures.start:  # noise, in which nothing is to be seen
        encodings["start"] = noise_for(job.root.seed, "start_latent", 0, job.latents_shape(1))
    if job.original:
        encodings[_TAIL] = _tail(job, job.original)
    job.note_vae(0)
    return encodings


def encode_images(job: OpenJob) -> dict[str, Tensor]:
    embeds: dict[str, Tensor] = {}
    by_checksum: dict[str, Tensor] = {}
    for of, picture in _vision_pictures(job).items():
        checksum = sha256_of([str(job.pictures.shape).encode(), picture.tobytes()])
        if checksum not in by_checksum:
            encodings = job.encoded(
                ("image_encoder", "feature_extractor"),
                lambda of=of: {"vision": _vision_states(job, of)},
                picture=checksum,
            )
            by_checksum[checksum] = encodings["vision"]
        embeds[_encoding_name("vision", of)] = by_checksum[checksum]
    return embeds


def _vision_pictures(job: OpenJob) -> dict[str, Image.Image]:
    """List the pictures that the vision encoder sees. A missing start picture is black."""
    height, width = job.pictures.shape
    return {START_PICTURE: Image.new("RGB", (width, height)), **job.pictures.fitted}


def _encoding_name(encoding: str, picture: str) -> str:
    return encoding if picture == START_PICTURE else f"{encoding}_{picture}"


def _tail(job: OpenJob, original: Original) -> Tensor:
    frames = original.context_frames
    num_frames = largest_encodable(len(frames))
    return encode_pictures(job, frames[:num_frames] if original.is_last else frames[-num_frames:], _TAIL)


def _vision_states(job: OpenJob, of: str = START_PICTURE) -> Tensor:
    extractor = job.models.component("feature_extractor")

    def vision(siglip: Any) -> Tensor:
        return to_host(encode_vision(siglip, extractor, _vision_pictures(job)[of]))

    return job.run("vision", vision, of=of)


encoders: Mapping[str, Callable[..., Any]] = {"vision": _vision_states, "vae_encode": latent_of}


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> FramePackCondition:
    request = job.request_for(section.number)
    conditions = {
        prompt: TextCondition(encodings[f"states_{n}"], encodings[f"pooled_{n}"])
        for n, prompt in enumerate(job.prompts)
    }
    prompts = prompts_of(section.number, request, job.family)
    pictures = [
        (encodings[_encoding_name("vision", name)], share)
        for name, share in pictures_of(section.number, request, job.family)
    ]
    image_embeds = pictures[0][0]
    if len(pictures) > 1:
        image_embeds = torch.stack([share * embeds for embeds, share in pictures]).sum(0)
    return FramePackCondition(
        positive=mix_prompts([(conditions[prompt], share) for prompt, share in prompts]),
        negative=conditions[request.negative] if len(request.prompts) > 1 else None,
        image_embeds=image_embeds,
        guidance=request.guidance,
        cfg=request.cfg,
        cfg_rescale=request.cfg_rescale,
    )


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> LatentHistory:
    # The weaker the end picture is, the farther it lies from the video, within the reach of the history.
    end_distance = round((1 - job.root.end_strength) * (HISTORY - HISTORY_1X))
    start = encodings["start"]
    end = encodings.get(_encoding_name("start", END_PICTURE))
    prefix = start
    suffix = start[:, :, :0]
    if not job.pictures.start:
        prefix = suffix
    elif job.original and job.original.is_last:
        suffix = encodings[_TAIL]
    elif job.original:
        prefix = encodings[_TAIL]
    section_starts: dict[int, Tensor] = {}
    for section in job.sections:
        request = job.request_for(section.number)
        picture = start_picture_of(section.number, request, job.family)
        if picture != START_PICTURE:
            section_starts[section.number] = encodings[_encoding_name("start", picture)]
    latents_per_second = job.family.fps / job.family.temporal_compression
    references = [
        (round(picture.time * latents_per_second), encodings[_encoding_name("start", timed_picture_name(n))])
        for n, picture in enumerate(job.request.timed_pictures if job.request.one_frame else (), 1)
    ]
    return LatentHistory(
        job.request.mode, start, end, prefix, suffix, end_distance=end_distance,
        section_starts=section_starts, references=references,
    )  # fmt: skip


def joiner(job: OpenJob) -> Join:
    return FrameBlender(job.request.mode, job.original).add


def blocks(network: HunyuanVideoFramepackTransformer3DModel, noise: Tensor) -> Blocks:
    return Blocks(
        [*network.transformer_blocks, *network.single_transformer_blocks],
        tokens_of(noise.shape),
        _modulated_input,
    )


def _modulated_input(block: Any, hidden_states: Tensor, text: Tensor, temb: Tensor, *_: object) -> Tensor:
    """Compute the input of a block's attention, as FramePack's TeaCache compares it."""
    return block.norm1(hidden_states, emb=temb)[0]


def sigmas(job: OpenJob, request: GenerationRequest) -> Tensor:
    default_shift = shift_of(tokens_of(job.latents_shape(job.sections.latent_window_size)))
    return flow_sigmas(request.steps, request.shift or job.models.info.shift or default_shift)


def samplers(job: OpenJob, section: Section, request: GenerationRequest) -> dict[str, Sampler]:
    return {"sample": partial(sampler_named(request.sampler), sigmas=sigmas(job, request))}

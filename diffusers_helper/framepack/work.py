"""FramePack at work: its encoders, its guided denoiser over packed history, and the blending of its sections.

This module is a `job.work.Work`; `families.family.FRAMEPACK` has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from PIL import Image
from torch import Tensor

from diffusers_helper.conditions.footage import in_fours
from diffusers_helper.conditions.timeline import pictures_of, start_of, words_of
from diffusers_helper.families.packing import HISTORY, HISTORY_1X, Section
from diffusers_helper.files import sha256_of
from diffusers_helper.framepack.guidance import (
    FramePackCondition,
    FramePackDenoiser,
    TextCondition,
    encode_pooled,
    encode_states,
    encode_vision,
    mixed,
)
from diffusers_helper.framepack.history import FrameBlender, LatentHistory
from diffusers_helper.job.original import Original
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Join, Sample, TextStage, encode_pictures, latent_of
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.request import END_PICTURE, START_PICTURE, GenerationRequest, placed_name
from diffusers_helper.sampling import sampler as sampler_named
from diffusers_helper.sampling.schedule import flow_sigmas, noise_for, shift_of, tokens_of
from diffusers_helper.sampling.step_cache import Blocks

denoiser = FramePackDenoiser
texts: Mapping[str, TextStage] = {
    "text": TextStage("text_encoder", "tokenizer", "states", encode_states),
    "text_2": TextStage("text_encoder_2", "tokenizer_2", "pooled", encode_pooled),
}
_TAIL = "tail"
_TEXTS = ("positive", "negative")


def latents(job: OpenJob) -> dict[str, Tensor]:
    """Encode each picture that sections see with the VAE once, and return their latents by name."""
    seen = [of for of in job.pictures.fitted if of != END_PICTURE or job.request.mode == "inverted"]
    once = cache(partial(latent_of, job))
    found = {_named("start", of): once(job.pictures.same(of)) for of in seen}
    if not job.pictures.start:  # noise, in which nothing is to be seen
        found["start"] = noise_for(job.root.seed, "start_latent", 0, job.latents_shape(1))
    if job.original:
        found[_TAIL] = _tail(job, job.original)
    job.note_vae(0)
    return found


def visions(job: OpenJob) -> dict[str, Tensor]:
    """Return the vision encoder's states of each picture by name."""
    found: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}
    for of, picture in _shown(job).items():
        checksum = sha256_of([str(job.pictures.shape).encode(), picture.tobytes()])
        if checksum not in made:
            known = job.encoded(
                ("image_encoder", "feature_extractor"),
                lambda of=of: {"vision": _vision_states(job, of)},
                picture=checksum,
            )
            made[checksum] = known["vision"]
        found[_named("vision", of)] = made[checksum]
    return found


def _shown(job: OpenJob) -> dict[str, Image.Image]:
    """Return the pictures that the vision encoder sees; a start picture that there is not is black."""
    height, width = job.pictures.shape
    return {START_PICTURE: Image.new("RGB", (width, height)), **job.pictures.fitted}


def _named(encoding: str, of: str) -> str:
    """Return the name of a picture's encoding; that of the start picture has no further name."""
    return encoding if of == START_PICTURE else f"{encoding}_{of}"


def _tail(job: OpenJob, original: Original) -> Tensor:
    """Encode the end that is continued of a video, in one causal pass, and return its latents."""
    many = in_fours(len(original.seen))
    return encode_pictures(job, original.seen[:many] if original.is_last else original.seen[-many:], _TAIL)


def _vision_states(job: OpenJob, of: str = START_PICTURE) -> Tensor:
    extractor = job.models.part("feature_extractor")

    def vision(siglip: Any) -> Tensor:
        return to_host(encode_vision(siglip, extractor, _shown(job)[of]))

    return job.run("vision", vision, of=of)


encoders: Mapping[str, Callable[..., Any]] = {"vision": _vision_states, "vae_encode": latent_of}


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> FramePackCondition:
    """Return the condition for a section, given the result of `encode`."""
    request, places = job.lineage.request_for(section.number, job.request), {}
    for n, text in enumerate(job.texts):
        places[text] = TextCondition(encodings[f"states_{n}"], encodings[f"pooled_{n}"])
    words = words_of(section.number, request, job.family)
    negative = places[request.negative] if len(request.texts) > 1 else None
    seen = pictures_of(section.number, request, job.family)
    visions = [(encodings[_named("vision", of)], share) for of, share in seen]
    vision = visions[0][0] if len(seen) == 1 else torch.stack([share * one for one, share in visions]).sum(0)
    return FramePackCondition(
        positive=mixed([(places[text], share) for text, share in words]), negative=negative, vision=vision,
        guidance=request.guidance, cfg=request.cfg, cfg_rescale=request.cfg_rescale,
    )  # fmt: skip


def restored(condition: Mapping[str, Any]) -> FramePackCondition:
    """Return the condition of a section from a capture."""
    texts = {name: text and TextCondition(**text) for name, text in condition.items() if name in _TEXTS}
    return FramePackCondition(**{**condition, **texts})


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> LatentHistory:
    """Return the history before the first section, which is the pictures.

    The weaker the end picture is, the farther it lies from the video, within the reach of the history.
    """
    strength = job.root.end_strength
    distance = round((1 - strength) * (HISTORY - HISTORY_1X))
    start, end = encodings["start"], encodings.get(_named("start", END_PICTURE))
    before, after = start, start[:, :, :0]
    if not job.pictures.start:
        before = after
    elif job.original and job.original.is_last:
        after = encodings[_TAIL]
    elif job.original:
        before = encodings[_TAIL]
    numbers = (section.number for section in job.sections)
    seen = {one: start_of(one, job.lineage.request_for(one, job.request), job.family) for one in numbers}
    starts = {one: encodings[_named("start", of)] for one, of in seen.items() if of != START_PICTURE}
    per_second = job.family.fps / job.family.latent_frames
    references = [
        (round(one.time * per_second), encodings[_named("start", placed_name(n))])
        for n, one in enumerate(job.request.placed if job.request.one_frame else (), 1)
    ]
    return LatentHistory(
        job.request.mode, start, end, before, after, distance=distance, starts=starts, references=references
    )


def joiner(job: OpenJob) -> Join:
    """Return the joiner of decoded sections."""
    return FrameBlender(job.request.mode, job.original).add


def blocks(network: HunyuanVideoFramepackTransformer3DModel, noise: Tensor) -> Blocks:
    """Return the transformer's blocks, as a step cache sees them, for noise of this shape."""
    return Blocks(
        [*network.transformer_blocks, *network.single_transformer_blocks], tokens_of(noise.shape), _modulated
    )


def _modulated(block: Any, hidden: Tensor, text: Tensor, time: Tensor, *_: object) -> Tensor:
    """Return the input of a block's attention, as FramePack's TeaCache compares it."""
    return block.norm1(hidden, emb=time)[0]


def sigmas(job: OpenJob, request: GenerationRequest) -> Tensor:
    """Return the noise levels of a section, which by default are shifted by its number of tokens."""
    by_tokens = shift_of(tokens_of(job.latents_shape(job.sections.window)))
    return flow_sigmas(request.steps, request.shift or job.models.info.shift or by_tokens)


def sampler(job: OpenJob, section: Section, request: GenerationRequest) -> Sample:
    """Return the sampler of a section."""
    return partial(sampler_named(request.sampler), sigmas=sigmas(job, request))

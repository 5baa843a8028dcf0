"""Helios at work: its encoders, its guided denoiser over packed history, and its sampling by the scheduler.

This module is a `job.work.Work`; `families.family.HELIOS` has the numbers.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers import HeliosTransformer3DModel
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

from diffusers_helper.conditions.timeline import words_of
from diffusers_helper.families.helios import MAX_TEXT_TOKENS, SECTION_FRAMES
from diffusers_helper.families.packing import Section
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
from diffusers_helper.job.work import Join, Sample, TextStage, encode_pictures, latent_of
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.request import START_PICTURE, GenerationRequest
from diffusers_helper.sampling.euler import sample_euler
from diffusers_helper.sampling.guidance import CleanLatents, Guidance, GuidedDenoiser
from diffusers_helper.sampling.schedule import levels_for, noise_for, tokens_of
from diffusers_helper.sampling.step_cache import Blocks


def encode_states(encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Return the hidden states (1, L, D) of a prompt's tokens, without padding.

    diffusers pads the tokens first, which gives the same states: no token sees the padding.
    """
    plain = " ".join(html.unescape(html.unescape(prompt)).split())
    tokens = tokenizer(plain, max_length=MAX_TEXT_TOKENS, truncation=True, return_tensors="pt")
    ids, mask = (tokens[name].to(encoder.device) for name in ("input_ids", "attention_mask"))
    return encoder(input_ids=ids, attention_mask=mask).last_hidden_state


def mixed(texts: Sequence[tuple[Tensor, float]]) -> Tensor:
    """Return the sum (1, 512, D) of the states (1, L, D) of texts, weighted by their shares.

    Each is padded with zeros, as in the training.
    """
    states = texts[0][0]
    result = states.new_zeros(states.shape[0], MAX_TEXT_TOKENS, states.shape[2])
    for text, share in texts:
        result[:, : text.shape[1]] += share * text
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class HeliosCondition(Guidance[Tensor]):
    """The states of the prompts, (1, 512, D), padded with zeros, and the guidance that condition a section.

    `times` are those of `times_of`.
    """

    times: tuple[tuple[float, float], ...] = ()


class HeliosDenoiser(GuidedDenoiser[Tensor]):
    """Helios' transformer as a denoiser of latents in any size of a pyramid."""

    def _time(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return the time at a noise level, which in a pyramid is a whole number that depends on x's size."""
        times = self._condition.times
        if not times:
            return super()._time(x, sigma)
        halvings = (self._context.start.shape[-1] // x.shape[-1]).bit_length() - 1
        begin, growth = times[len(times) - 1 - halvings]
        return (begin + sigma * growth).to(torch.int64)

    def _text_arguments(self, text: Tensor) -> dict[str, Tensor]:
        return {"encoder_hidden_states": self._put(text)}

    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        indices = context.indices
        positions = {
            "indices_hidden_states": indices.noisy,
            "indices_latents_history_short": indices.clean,
            "indices_latents_history_mid": indices.history_2x,
            "indices_latents_history_long": indices.history_4x,
        }
        return {
            **{name: torch.tensor([one]) for name, one in positions.items()},
            "latents_history_short": self._put(torch.cat([context.start, context.history_1x], dim=2)),
            "latents_history_mid": self._put(context.history_2x),
            "latents_history_long": self._put(context.history_4x),
        }


class SectionHistory:
    """The clean latents in temporal order, (1, 16, T, h, w), in fp32 on the CPU."""

    def __init__(self, before: Tensor, start: Tensor | None) -> None:
        """Begin with what the first section sees as its history, which may have no frame.

        `start` is the latent of the picture, or of the first frame of the video that is continued. Without
        one, the first latent that is made takes its place.
        """
        self._before, self._start = before, start
        self.latents = before[:, :, :0]

    def add(self, window: Tensor, section: Section) -> None:
        """Add the latents (1, 16, W, h, w) of a section."""
        self.latents = torch.cat([self.latents, window], dim=2)

    def context(self, section: Section) -> CleanLatents:
        """Return the latents that a section sees: the first one and the nearest ones, padded with zeros."""
        made = torch.cat([self._before, self.latents], dim=2)
        start = self.latents[:, :, :1] if self._start is None else self._start
        if not start.shape[2]:
            start = made.new_zeros(*made.shape[:2], 1, *made.shape[3:])
        return CleanLatents.after(section.indices, start, made)

    def to_decode(self, section: Section) -> Tensor:
        """Return the latents to decode after a section was added, which are its own."""
        return self.latents[:, :, -section.decode_latents :]


denoiser = HeliosDenoiser
texts: Mapping[str, TextStage] = {"text": TextStage("text_encoder", "tokenizer", "states", encode_states)}
# What precedes a video has noise of a level in this range, so that mistakes in it weigh less.
_LEAST_NOISE, _MOST_NOISE = 0.111, 0.135
_START, _PREFIX, _BEFORE = "start", "prefix", "before"


def latents(job: OpenJob) -> dict[str, Tensor]:
    """Encode the start picture or the video that is continued, and return the latents by name.

    A section sees them with noise, as in the training.
    """
    found: dict[str, Tensor] = {}
    if START_PICTURE in job.pictures.fitted:
        found[_START] = latent_of(job)
        if job.original:
            first = Image.fromarray(next(job.original.frames()))
            prefix, before = encode_pictures(job, [first], "first"), _tail(job, job.original)
        else:
            # The history of a video that begins with a picture is a video in which nothing moves.
            still = [job.pictures.fitted[START_PICTURE]] * SECTION_FRAMES
            prefix, before = found[_START], encode_pictures(job, still, "still")[:, :, -1:]
        found |= {_PREFIX: _noisy(job, prefix, 0), _BEFORE: _noisy(job, before, 1)}
    job.note_vae(0)
    return found


def visions(job: OpenJob) -> dict[str, Tensor]:
    """Return nothing, since Helios sees a picture only by its latent."""
    return {}


def _tail(job: OpenJob, original: Original) -> Tensor:
    """Encode the end of the video that is continued, in sections as Helios makes them."""
    tail = original.seen
    begins = range(len(tail) % SECTION_FRAMES if len(tail) > SECTION_FRAMES else 0, len(tail), SECTION_FRAMES)
    parts = (tail[begin : begin + SECTION_FRAMES] for begin in begins)
    return torch.cat([encode_pictures(job, part, "tail", n) for n, part in enumerate(parts)], dim=2)


def _noisy(job: OpenJob, clean: Tensor, number: int) -> Tensor:
    """Return latents with noise, whose level is drawn for each frame."""
    drawn = levels_for(job.root.seed, "levels", number, clean.shape[2]).view(1, 1, -1, 1, 1)
    level = _LEAST_NOISE + drawn * (_MOST_NOISE - _LEAST_NOISE)
    return level * noise_for(job.root.seed, "blur", number, tuple(clean.shape)) + (1 - level) * clean


encoders: Mapping[str, Callable[..., Any]] = {"vae_encode": latent_of}


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> HeliosCondition:
    """Return the condition for a section, given the result of `encode`."""
    request = job.lineage.request_for(section.number, job.request)
    states = {text: encodings[f"states_{n}"] for n, text in enumerate(job.texts)}
    words = words_of(section.number, request, job.family)
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


def joiner(job: OpenJob) -> Join:
    """Return the joiner of decoded sections, which share no frame, so that all frames are final."""
    return lambda frames, section: (to_uint8(frames), to_uint8(frames[:0]))


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

"""Helios' half that works on tensors: its encoders, its guided denoiser, its history and its sampler.

This module is a `job.work.Work`; `families.helios.HELIOS` has the numbers.
"""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers import HeliosTransformer3DModel, WanTransformer3DModel
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

from diffusers_helper.conditions.timeline import prompts_of
from diffusers_helper.families.helios import MAX_PROMPT_TOKENS, SECTION_FRAMES
from diffusers_helper.families.packing import Section
from diffusers_helper.helios.schedule import (
    flat_levels,
    is_pyramid,
    new_scheduler,
    pyramid,
    sample_flat,
    sample_pyramid,
    stage_times,
)
from diffusers_helper.job.original import Original
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Join, LatentsSoFar, Sampler, TextStage, encode_pictures, latent_of
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.request import START_PICTURE, GenerationRequest
from diffusers_helper.sampling.euler import sample_euler
from diffusers_helper.sampling.guidance import CleanLatents, Guidance, GuidedDenoiser
from diffusers_helper.sampling.schedule import noise_for, tokens_of, uniform_for
from diffusers_helper.sampling.step_cache import Blocks


def encode_states(encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Encode a prompt to the hidden states (1, L, D) of its tokens, without padding.

    diffusers pads the tokens first, which gives the same states: no token sees the padding.
    """
    plain_prompt = " ".join(html.unescape(html.unescape(prompt)).split())
    tokens = tokenizer(plain_prompt, max_length=MAX_PROMPT_TOKENS, truncation=True, return_tensors="pt")
    ids, mask = (tokens[name].to(encoder.device) for name in ("input_ids", "attention_mask"))
    return encoder(input_ids=ids, attention_mask=mask).last_hidden_state


def mix_prompts(prompts: Sequence[tuple[Tensor, float]]) -> Tensor:
    """Sum prompt embeddings (1, L, D) by their shares to (1, 512, D), padded with zeros."""
    first_embeds = prompts[0][0]
    prompt_embeds = first_embeds.new_zeros(first_embeds.shape[0], MAX_PROMPT_TOKENS, first_embeds.shape[2])
    for embeds, share in prompts:
        prompt_embeds[:, : embeds.shape[1]] += share * embeds
    return prompt_embeds


@dataclass(frozen=True, slots=True, kw_only=True)
class HeliosCondition(Guidance[Tensor]):
    """The prompts (1, 512, D), padded with zeros, and the guidance that condition a section.

    `times` are those of `stage_times`.
    """

    times: tuple[tuple[float, float], ...] = ()


class HeliosDenoiser(GuidedDenoiser[Tensor]):
    def _timestep(self, x: Tensor, sigma: Tensor) -> Tensor:
        times = self._condition.times
        if not times:
            return super()._timestep(x, sigma)
        halvings = (self._context.start.shape[-1] // x.shape[-1]).bit_length() - 1
        start_time, time_span = times[len(times) - 1 - halvings]
        return (start_time + sigma * time_span).to(torch.int64).reshape(1)

    def _text_arguments(self, text: Tensor) -> dict[str, Tensor]:
        return {"encoder_hidden_states": self._to_network(text)}

    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        indices = context.indices
        positions = {
            "indices_hidden_states": indices.noisy,
            "indices_latents_history_short": indices.clean,
            "indices_latents_history_mid": indices.history_2x,
            "indices_latents_history_long": indices.history_4x,
        }
        return {
            **{name: torch.tensor([times]) for name, times in positions.items()},
            "latents_history_short": self._to_network(torch.cat([context.start, context.history_1x], dim=2)),
            "latents_history_mid": self._to_network(context.history_2x),
            "latents_history_long": self._to_network(context.history_4x),
        }


class SectionHistory(LatentsSoFar):
    """The clean latents in temporal order, (1, 16, T, h, w), in fp32 on the CPU."""

    def __init__(self, history: Tensor, first_latent: Tensor | None) -> None:
        super().__init__(history[:, :, :0])
        self._first_history = history
        self._first_latent = first_latent

    def context(self, section: Section) -> CleanLatents:
        history = torch.cat([self._first_history, self.latents], dim=2)
        start = self.latents[:, :, :1] if self._first_latent is None else self._first_latent
        if not start.shape[2]:
            start = history.new_zeros(*history.shape[:2], 1, *history.shape[3:])
        return CleanLatents.after(section.indices, start, history)


denoiser = HeliosDenoiser
condition_type = HeliosCondition
text_stages: Mapping[str, TextStage] = {
    "text": TextStage("text_encoder", "tokenizer", "states", encode_states)
}
# What precedes a video has noise of a level in this range, so that mistakes in it weigh less.
_MIN_NOISE, _MAX_NOISE = 0.111, 0.135
_START, _FIRST_LATENT, _HISTORY = "start", "prefix", "before"


def latents(job: OpenJob) -> dict[str, Tensor]:
    """Encode the start picture or the video that is continued; a section sees them with noise."""
    encodings: dict[str, Tensor] = {}
    if START_PICTURE in job.pictures.fitted:
        encodings[_START] = latent_of(job)
        if job.original:
            first_frame = Image.fromarray(next(job.original.frames()))
            first_latent = encode_pictures(job, [first_frame], "first")
            history = _tail(job, job.original)
        else:
            # The history of a video that begins with a picture is a video in which nothing moves.
            first_latent = encodings[_START]
            still_frames = [job.pictures.fitted[START_PICTURE]] * SECTION_FRAMES
            history = encode_pictures(job, still_frames, "still")[:, :, -1:]
        encodings[_FIRST_LATENT] = _add_noise(job, first_latent, 0)
        encodings[_HISTORY] = _add_noise(job, history, 1)
    job.note_vae(0)
    return encodings


def encode_images(job: OpenJob) -> dict[str, Tensor]:
    """Encode nothing: the model sees a picture only by its latent."""
    return {}


def _tail(job: OpenJob, original: Original) -> Tensor:
    frames = original.context_frames
    first_start = len(frames) % SECTION_FRAMES if len(frames) > SECTION_FRAMES else 0
    starts = range(first_start, len(frames), SECTION_FRAMES)
    sections = (frames[start : start + SECTION_FRAMES] for start in starts)
    return torch.cat([encode_pictures(job, section, "tail", n) for n, section in enumerate(sections)], dim=2)


def _add_noise(job: OpenJob, latents: Tensor, number: int) -> Tensor:
    random_levels = uniform_for(job.root.seed, "levels", number, latents.shape[2]).view(1, 1, -1, 1, 1)
    level = _MIN_NOISE + random_levels * (_MAX_NOISE - _MIN_NOISE)
    return level * noise_for(job.root.seed, "blur", number, tuple(latents.shape)) + (1 - level) * latents


encoders: Mapping[str, Callable[..., Any]] = {"vae_encode": latent_of}


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> HeliosCondition:
    times = stage_times(job.models.component("scheduler"))
    return HeliosCondition(**guidance(job, section, encodings), times=times)


def guidance(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> dict[str, Any]:
    request = job.request_for(section.number)
    prompt_embeds = {prompt: encodings[f"states_{n}"] for n, prompt in enumerate(job.prompts)}
    prompts = prompts_of(section.number, request, job.family)
    return {
        "positive": mix_prompts([(prompt_embeds[prompt], share) for prompt, share in prompts]),
        "negative": mix_prompts([(prompt_embeds[request.negative], 1.0)])
        if len(request.prompts) > 1
        else None,
        "cfg": request.cfg,
        "cfg_rescale": request.cfg_rescale,
    }


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> SectionHistory:
    first_history = encodings.get(_HISTORY)
    if first_history is None:  # the video begins without a picture or another video
        first_history = torch.zeros(job.latents_shape(0))
    return SectionHistory(first_history, encodings.get(_FIRST_LATENT))


def joiner(job: OpenJob) -> Join:
    """Join sections, which leave out the frames that they repeat."""
    return lambda frames, section: (to_uint8(frames[section.overlap_frames :]), to_uint8(frames[:0]))


def blocks(network: HeliosTransformer3DModel | WanTransformer3DModel, noise: Tensor) -> Blocks:
    return Blocks([*network.blocks], tokens_of(noise.shape), _modulated_input, num_outputs=1)


def _modulated_input(block: Any, hidden_states: Tensor, text: Tensor, temb: Tensor, *_: object) -> Tensor:
    """Compute the input of a block's attention, whose modulation may differ from token to token."""
    table = block.scale_shift_table if temb.ndim == 3 else block.scale_shift_table.unsqueeze(0)
    shift, scale = (table + temb.float()).movedim(-2, 0)[:2]
    if temb.ndim == 3:
        shift, scale = shift.unsqueeze(1), scale.unsqueeze(1)
    return block.norm1(hidden_states.float()) * (1 + scale) + shift


def samplers(job: OpenJob, section: Section, request: GenerationRequest) -> dict[str, Sampler]:
    return {"sample": _sampler(job, section, request)}


def _sampler(job: OpenJob, section: Section, request: GenerationRequest) -> Sampler:
    shape = job.latents_shape(job.sections.latent_window_size)
    shift = request.shift or job.models.info.shift or 0.0
    scheduler = new_scheduler(job.models.component("scheduler"), shift)
    steps = job.models.info.steps_in(section.number, request.steps)
    if is_pyramid(scheduler):

        def draw_noise(stage: int, size: tuple[int, int]) -> Tensor:
            return noise_for(request.seed, "stage", scheduler.config.stages * section.number + stage, size)

        return partial(sample_pyramid, stages=pyramid(scheduler, steps, shape, draw_noise, shift=shift))
    if request.sampler == "euler":
        return partial(sample_euler, sigmas=flat_levels(scheduler, steps, shape, shift))
    return partial(sample_flat, scheduler=scheduler, steps=steps, shift=shift)

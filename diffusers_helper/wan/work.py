"""Wan's half that works on tensors: its encoders, its denoiser with a clean first frame, its chain of clips.

This module is a `job.work.Work`; `families.wan.WAN` has the numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from diffusers_helper.conditions.timeline import prompts_of
from diffusers_helper.families.packing import Section, frames_of
from diffusers_helper.families.step_caches import OFF
from diffusers_helper.helios.work import encode_states, guidance
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Join, Sample, TextStage, latent_of
from diffusers_helper.output.previews import to_uint8
from diffusers_helper.request import START_PICTURE, GenerationRequest
from diffusers_helper.sampling.guidance import NUM_TRAIN_TIMESTEPS, CleanLatents, Guidance, GuidedDenoiser
from diffusers_helper.sampling.schedule import noise_for, tokens_of
from diffusers_helper.sampling.step_cache import Blocks
from diffusers_helper.vae.codec import sample_latents
from diffusers_helper.wan.colours import with_colours
from diffusers_helper.wan.schedule import new_scheduler, sample_at, sample_flow

START = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class WanCondition(Guidance[Tensor]):
    """The prompts (1, 512, D), padded with zeros, and the guidance that condition a clip.

    `times` has each noise level with the whole number that the network gets for it.
    """

    times: tuple[tuple[float, int], ...] = ()


class WanDenoiser(GuidedDenoiser[Tensor]):
    """Wan's transformer as a denoiser of a clip."""

    def _timestep(self, x: Tensor, sigma: Tensor) -> Tensor:
        level = float(sigma)
        _, time = min(self._condition.times, key=lambda entry: abs(entry[0] - level))
        return torch.tensor([time], device=x.device)

    def _text_arguments(self, text: Tensor) -> dict[str, Tensor]:
        return {"encoder_hidden_states": self._to_network(text)}

    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        return {}


class CleanStartDenoiser(WanDenoiser):
    """A denoiser of a clip whose first latents may be clean already.

    The tokens of clean latents have the time 0 (`expand_timesteps` in diffusers).
    """

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        clean = self._context.start.to(x)
        num_clean = clean.shape[2]
        x0 = super().__call__(torch.cat([clean, x[:, :, num_clean:]], dim=2), sigma)
        return torch.cat([clean, x0[:, :, num_clean:]], dim=2)

    def _timestep(self, x: Tensor, sigma: Tensor) -> Tensor:
        time, num_clean = super()._timestep(x, sigma), self._context.start.shape[2]
        if not num_clean:
            return time
        tokens = time.repeat(1, x.shape[2], tokens_of(x[:, :, :1].shape))
        tokens[:, :num_clean] = 0
        return tokens.flatten(1)


class ClipChain:
    """The latents of all clips so far, and the frames with which the next one begins (`job.work.Chain`).

    These are the decoder's output and not their latents, which depend on those before them.
    """

    def __init__(self, job: OpenJob, start: Tensor | None) -> None:
        """Begin with the latent of a picture, or with nothing."""
        self._job = job
        self._start = start
        self.latents = torch.zeros(job.latents_shape(0))
        self.carried: Tensor | None = None

    def add(self, latents: Tensor, section: Section) -> None:
        self.latents = torch.cat([self.latents, latents], dim=2)

    def context(self, section: Section) -> CleanLatents:
        nothing = self.latents[:, :, :0]
        if section.number == 1:
            start = nothing if self._start is None else self._start
        else:
            start = self._encoded(self._first_pixels())
        return CleanLatents(section.indices, start, nothing, nothing, nothing)

    def _first_pixels(self) -> Tensor:
        """Give the frames that the next clip begins with, (1, 3, T, H, W), as the decoder has made them."""
        assert self.carried is not None
        return self.carried[1:].permute(3, 0, 1, 2)[None]

    def join(self, frames: Tensor, section: Section) -> Tensor:
        """Give a clip the colours of the frames that it repeats, and carry over its last frames."""
        frames = frames.clamp(-1, 1)
        first_frame = frames[:1]
        if self.carried is not None:
            first_frame = self.carried[:1]
            end = first_frame if self._holds_colours(section) else None
            frames = with_colours(frames, self.carried[1:], end)
        sections = self._job.sections
        num_carried = frames_of(sections.latent_window_size) - sections.section_frames
        self.carried = torch.cat([first_frame, frames[-num_carried:]])
        return frames

    def _holds_colours(self, section: Section) -> bool:
        job = self._job
        request = job.lineage.request_for(section.number, job.request)
        first_request = job.lineage.request_for(1, job.request)
        words, first_words = (
            prompts_of(number, a_request, job.family)
            for number, a_request in ((section.number, request), (1, first_request))
        )
        return request.hold_colours != OFF and words == first_words

    def _encoded(self, frames: Tensor) -> Tensor:
        """Encode 4 n + 1 frames (1, 3, T, H, W) as the mean of their latents (1, C, n + 1, h, w)."""
        job = self._job
        moments = job.vae.encode(frames, progress=job.pieces("vae_encode"), cancel=job.cancel)
        num_latents = (frames.shape[2] - 1) // job.family.temporal_compression + 1
        noise = torch.zeros(job.latents_shape(num_latents))
        return sample_latents(moments, noise, job.models.component("vae").config)

    def to_decode(self, section: Section) -> Tensor:
        return self.latents[:, :, -section.decode_latents :]


denoiser = CleanStartDenoiser
text_stages: Mapping[str, TextStage]
text_stages = {"text": TextStage("text_encoder", "tokenizer", "states", encode_states)}
_start_latent = partial(latent_of, purpose=None)
encoders: Mapping[str, Callable[..., Any]] = {"vae_encode": _start_latent}


def latents(job: OpenJob) -> dict[str, Tensor]:
    """Encode the start picture, or the last frame of the video that is continued."""
    encodings = {START: _start_latent(job)} if START_PICTURE in job.pictures.fitted else {}
    job.note_vae(0)
    return encodings


def encode_images(job: OpenJob) -> dict[str, Tensor]:
    """Encode nothing: Wan sees a picture only by its latent."""
    return {}


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> WanCondition:
    request = job.lineage.request_for(section.number, job.request)
    return WanCondition(**guidance(job, section, encodings), times=_times(job, request))


def _times(job: OpenJob, request: GenerationRequest) -> tuple[tuple[float, int], ...]:
    if times := job.models.info.times:
        return tuple((time / NUM_TRAIN_TIMESTEPS, time) for time in times)
    scheduler = scheduler_of(job, request)
    return tuple(zip(scheduler.sigmas[:-1].tolist(), scheduler.timesteps.tolist(), strict=True))


def scheduler_of(job: OpenJob, request: GenerationRequest) -> Any:
    shift = request.shift or job.models.info.shift or 0.0
    is_euler = request.sampler == "euler"
    return new_scheduler(job.models.component("scheduler"), request.steps, shift, is_euler=is_euler)


def restored(condition: Mapping[str, Any]) -> WanCondition:
    times = tuple((level, time) for level, time in condition["times"])
    return WanCondition(**{**condition, "times": times})


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> ClipChain:
    return ClipChain(job, encodings.get(START))


def joiner(job: OpenJob) -> Join:
    """Join clips, of which all but the first leave out the frame that they begin with."""
    return lambda frames, section: (to_uint8(frames[section.overlap_frames :]), to_uint8(frames[:0]))


def blocks(network: WanTransformer3DModel, noise: Tensor) -> Blocks:
    return Blocks([*network.blocks], tokens_of(noise.shape), _modulated_input, num_outputs=1)


def _modulated_input(block: Any, hidden_states: Tensor, text: Tensor, temb: Tensor, *_: object) -> Tensor:
    """Compute the input of a block's attention, whose modulation may differ from token to token."""
    table = block.scale_shift_table if temb.ndim == 3 else block.scale_shift_table.unsqueeze(0)
    shift, scale = (table + temb.float()).movedim(-2, 0)[:2]
    if temb.ndim == 3:
        shift, scale = shift.unsqueeze(1), scale.unsqueeze(1)
    return block.norm1(hidden_states.float()) * (1 + scale) + shift


def samplers(job: OpenJob, section: Section, request: GenerationRequest) -> dict[str, Sample]:
    return {"sample": _sampler(job, section, request)}


def _sampler(job: OpenJob, section: Section, request: GenerationRequest) -> Sample:
    if times := job.models.info.times:
        shape = job.latents_shape(len(section.indices.noisy))

        def draw_noise(step: int) -> Tensor:
            return noise_for(request.seed, "step", len(times) * section.number + step, shape)

        return partial(sample_at, times=times, draw_noise=draw_noise)
    return partial(sample_flow, scheduler=scheduler_of(job, request))

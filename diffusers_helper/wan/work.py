"""Wan's half that works on tensors: its encoders, its denoisers, and its chain of clips.

The 5B has a clean first frame among its latents. A14B gets pictures as further channels, and has two
transformers: the first samples at high noise, and the second goes on from its state at low noise. This
module is a `job.work.Work` for both; `families.wan` has the numbers.
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
from diffusers_helper.helios.work import blocks, encode_images, guidance, joiner, text_stages
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import LatentsSoFar, Sampler, latent_of
from diffusers_helper.request import END_PICTURE, START_PICTURE, GenerationRequest
from diffusers_helper.sampling.guidance import NUM_TRAIN_TIMESTEPS, CleanLatents, Guidance, GuidedDenoiser
from diffusers_helper.sampling.schedule import noise_for, tokens_of
from diffusers_helper.sampling.step_cache import Passes
from diffusers_helper.vae.codec import pixels_of, sample_latents
from diffusers_helper.wan.colours import with_colours
from diffusers_helper.wan.schedule import new_scheduler, sample_at, sample_flow

# Those of Helios are members of this `Work`, too.
__all__ = ["blocks", "encode_images", "joiner", "text_stages"]
START = "start"
_FRAMES_PER_LATENT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WanCondition(Guidance[Tensor]):
    """The prompts (1, 512, D), padded with zeros, and the guidance that condition a clip.

    `times` has each noise level with the whole number that the network gets for it.
    """

    times: tuple[tuple[float, int], ...] = ()


class WanDenoiser(GuidedDenoiser[Tensor]):
    def _timestep(self, x: Tensor, sigma: Tensor) -> Tensor:
        level = float(sigma)
        _, time = min(self._condition.times, key=lambda entry: abs(entry[0] - level))
        return torch.tensor([time], device=x.device)

    def _text_arguments(self, text: Tensor) -> dict[str, Tensor]:
        return {"encoder_hidden_states": self._to_network(text)}

    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        return {}


class CleanStartDenoiser(WanDenoiser):
    """A denoiser whose first latents may be clean: their tokens have the time 0, as in diffusers."""

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


class ExpertDenoiser(WanDenoiser):
    """A transformer that gets a mask and the latents of the given pictures as channels beside the noise."""

    def _to_network(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == self._context.start.dim():
            tensor = torch.cat([tensor, self._context.start.to(tensor)], dim=1)
        return super()._to_network(tensor)


class ClipChain(LatentsSoFar):
    """All latents so far. A clip begins with decoded frames, since latents depend on those before them."""

    def __init__(self, job: OpenJob, start: Tensor | None) -> None:
        super().__init__(torch.zeros(job.latents_shape(0)))
        self._job = job
        self._start = start

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

    def carry(self, frames: Tensor, section: Section) -> Tensor:
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
        words, first_words = (
            prompts_of(number, job.request_for(number), job.family) for number in (section.number, 1)
        )
        return job.request_for(section.number).hold_colours != OFF and words == first_words

    def _encoded(self, frames: Tensor) -> Tensor:
        """Encode 4 n + 1 frames (1, 3, T, H, W) as the mean of their latents (1, C, n + 1, h, w)."""
        job = self._job
        moments = job.vae.encode(frames, progress=job.pieces("vae_encode"), cancel=job.cancel)
        num_latents = (frames.shape[2] - 1) // job.family.temporal_compression + 1
        noise = torch.zeros(job.latents_shape(num_latents))
        return sample_latents(moments, noise, job.models.component("vae").config)


class PictureChain(ClipChain):
    def context(self, section: Section) -> CleanLatents:
        nothing = self.latents[:, :, :0]
        pictures = self._job.pictures.fitted
        first = pixels_of([pictures[START_PICTURE]]) if section.number == 1 else self._first_pixels()
        is_last = section.number == len(self._job.sections)
        last = pixels_of([pictures[END_PICTURE]]) if is_last and END_PICTURE in pictures else None
        return CleanLatents(section.indices, self._condition(section, first, last), nothing, nothing, nothing)

    def _condition(self, section: Section, first: Tensor, last: Tensor | None) -> Tensor:
        """Encode a grey video with the pictures, after a mask (1, 4, T, h, w) of the frames that they are."""
        frames = first.new_zeros(1, 3, section.decoded_frames, *first.shape[3:])
        num_first = first.shape[2]
        frames[:, :, :num_first] = first
        if last is not None:
            frames[:, :, -1:] = last
        encoded = self._encoded(frames)
        mask = torch.zeros(1, section.decode_latents, _FRAMES_PER_LATENT, *encoded.shape[3:])
        mask[:, : (num_first - 1) // _FRAMES_PER_LATENT + 1] = 1
        mask[:, -1, -1] = last is not None
        return torch.cat([mask.transpose(1, 2), encoded], dim=1)


condition_type = WanCondition
_start_latent = partial(latent_of, purpose=None)
encoders: Mapping[str, Callable[..., Any]] = {"vae_encode": _start_latent}


def latents(job: OpenJob) -> dict[str, Tensor]:
    encodings = {START: _start_latent(job)} if START_PICTURE in job.pictures.fitted else {}
    job.note_vae(0)
    return encodings


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> WanCondition:
    request = job.request_for(section.number)
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


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> ClipChain:
    return (PictureChain if _has_experts(job) else ClipChain)(job, encodings.get(START))


def _has_experts(job: OpenJob) -> bool:
    return "transformer_2" in job.family.networks


def denoiser(
    network: WanTransformer3DModel, condition: WanCondition, context: CleanLatents, passes: Passes
) -> WanDenoiser:
    config: Any = network.config
    takes_pictures = config.in_channels > config.out_channels
    return (ExpertDenoiser if takes_pictures else CleanStartDenoiser)(network, condition, context, passes)


def samplers(job: OpenJob, section: Section, request: GenerationRequest) -> dict[str, Sampler]:
    if times := job.models.info.times:
        shape = job.latents_shape(len(section.indices.noisy))

        def draw_noise(step: int) -> Tensor:
            return noise_for(request.seed, "step", len(times) * section.number + step, shape)

        return {"sample": partial(sample_at, times=times, draw_noise=draw_noise)}
    scheduler = scheduler_of(job, request)
    sampler = partial(sample_flow, scheduler=scheduler)
    if not _has_experts(job):
        return {"sample": sampler}
    until = job.family.high_steps(request.steps, scheduler.config.flow_shift)
    return {"sample": partial(sampler, until=until), "sample_low": sampler}

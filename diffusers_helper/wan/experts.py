"""The half of Wan 2.2 A14B that works on tensors: two transformers, and pictures as further channels.

The first transformer samples at high noise, and the second one goes on from its state at low noise. This
module is a `job.work.Work`; `families.wan.WAN_A14B` has the numbers.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffusers_helper.families.packing import Section
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Sample
from diffusers_helper.request import END_PICTURE, START_PICTURE, GenerationRequest
from diffusers_helper.sampling.guidance import CleanLatents
from diffusers_helper.vae.codec import pixels_of
from diffusers_helper.wan import work
from diffusers_helper.wan.schedule import sample_flow
from diffusers_helper.wan.work import (
    blocks,
    condition,
    encode_images,
    encoders,
    joiner,
    latents,
    restored,
    text_stages,
)

__all__ = ["blocks", "condition", "encode_images", "encoders", "joiner", "latents", "restored", "text_stages"]
_FRAMES_PER_LATENT = 4


class ExpertDenoiser(work.WanDenoiser):
    """A transformer that gets a mask and the latents of the given pictures as channels beside the noise."""

    def _to_network(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == self._context.start.dim():
            tensor = torch.cat([tensor, self._context.start.to(tensor)], dim=1)
        return super()._to_network(tensor)


class PictureChain(work.ClipChain):
    """A chain whose clips begin with a frame, and whose last one may end with a picture."""

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


denoiser = ExpertDenoiser


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> PictureChain:
    return PictureChain(job, encodings.get(work.START))


def samplers(job: OpenJob, section: Section, request: GenerationRequest) -> dict[str, Sample]:
    scheduler: Any = work.scheduler_of(job, request)
    until = job.family.high_steps(request.steps, scheduler.config.flow_shift)
    return {
        "sample": partial(sample_flow, scheduler=scheduler, until=until),
        "sample_low": partial(sample_flow, scheduler=scheduler),
    }

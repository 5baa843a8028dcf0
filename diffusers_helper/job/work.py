"""What a family of models brings to the loop in `pipeline.generate`, besides its numbers in `families/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from diffusers_helper.families.packing import Section
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.request import GenerationRequest
from diffusers_helper.sampling.denoiser import Denoise, OnStep
from diffusers_helper.sampling.guidance import CleanLatents, Guidance
from diffusers_helper.sampling.step_cache import Blocks, Passes

Encodings = Mapping[str, Tensor]


class Sample(Protocol):
    """A sampler that knows its noise levels; see `sampling.Sampler`."""

    def __call__(self, denoise: Denoise, x: Tensor, /, *, on_step: OnStep | None = None) -> Tensor: ...


class LatentsSoFar(Protocol):
    """The clean latents made so far, and the parts of them that a section and its decoding need."""

    latents: Tensor

    def add(self, window: Tensor, section: Section) -> None:
        """Add the latents of a section."""

    def context(self, section: Section) -> CleanLatents:
        """Return what a section sees of the others."""
        ...

    def to_decode(self, section: Section) -> Tensor: ...


class Joiner(Protocol):
    """The joiner of decoded sections."""

    def add(self, frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        """Return a section's frames that are final now, and those that the next one will still change."""
        ...


class Work(Protocol):
    """The half of a family of models that works on tensors. A module with these members is one.

    Attributes:
        encoders: The stages of `encode` by their names in captures, each of which can be run by itself;
            those of pictures take the name of the setting as `of`.
    """

    encoders: Mapping[str, Callable[..., Any]]

    def encode(self, job: OpenJob) -> dict[str, Tensor]:
        """Encode what conditions the video. The latent of the picture is named `start`."""
        ...

    def latents(self, job: OpenJob) -> dict[str, Tensor]:
        """Encode what depends on the seed."""
        ...

    def visions(self, job: OpenJob) -> dict[str, Tensor]:
        """Encode what is seen of the pictures without the seed."""
        ...

    def condition(self, job: OpenJob, section: Section, encodings: Encodings) -> Guidance[Any]:
        """Return what conditions a section; a dataclass of tensors and plain values."""
        ...

    def restored(self, condition: Mapping[str, Any]) -> Guidance[Any]:
        """Return the condition of a section from a capture, which has mappings for dataclasses."""
        ...

    def history(self, job: OpenJob, encodings: Encodings) -> LatentsSoFar:
        """Return the history before the first section."""
        ...

    def sampler(self, job: OpenJob, section: Section, request: GenerationRequest) -> Sample:
        """Return the sampler of a section, with the noise levels that it goes through."""
        ...

    def blocks(self, network: Any, noise: Tensor) -> Blocks:
        """Return the network's blocks, as a step cache sees them, for noise of this shape."""
        ...

    def denoiser(self, network: Any, condition: Any, context: CleanLatents, passes: Passes, /) -> Denoise:
        """Return the network as a function from noisy latents and a noise level to clean latents.

        It has `passes` run each pass of the network.
        """
        ...

    def joiner(self, job: OpenJob) -> Joiner: ...

"""What a family of models brings to the loop in `pipeline.generate`, besides its numbers in `families/`."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffusers_helper.families.packing import Section
from diffusers_helper.files import sha256_of
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.request import START_PICTURE, GenerationRequest
from diffusers_helper.sampling import Denoise
from diffusers_helper.sampling.guidance import CleanLatents, Guidance
from diffusers_helper.sampling.schedule import Purpose, noise_for
from diffusers_helper.sampling.step_cache import Blocks, Passes
from diffusers_helper.vae.codec import pixels_of, sample_latents

Encodings = Mapping[str, Tensor]
Sampler = Callable[..., Tensor | Mapping[str, Tensor]]
"""A sampler that knows its noise levels. Its other arguments are those of `sampling.euler.sample_euler`. One
that does not sample to the end returns its state."""
Join = Callable[[Tensor, Section], tuple[np.ndarray, np.ndarray]]
"""A function that takes the decoded frames of each section, (T, H, W, 3) in -1 to 1, and returns those that
are final now, and those that the next section will still change."""


class LatentsSoFar(ABC):
    """The clean latents made so far, (1, C, T, h, w), and the parts of them that a section needs.

    In a chain, `carried` are the first frame of the video and the last ones of the section before, with which
    the next one begins, (1 + T, H, W, 3) in -1 to 1.
    """

    carried: Tensor | None = None

    def __init__(self, latents: Tensor) -> None:
        self.latents = latents

    def add(self, latents: Tensor, section: Section) -> None:
        self.latents = torch.cat([self.latents, latents], dim=2)

    @abstractmethod
    def context(self, section: Section) -> CleanLatents: ...

    def to_decode(self, section: Section) -> Tensor:
        return self.latents[:, :, -section.decode_latents :]

    def carry(self, frames: Tensor, section: Section) -> Tensor:
        """Adapt the decoded frames of a section to those that they repeat, and carry over its last ones."""
        return frames


@dataclass(frozen=True, slots=True)
class TextStage:
    """The encoding of a job's texts by one network; `result` names the encodings before their index."""

    network: str
    tokenizer: str
    result: str
    encode: Callable[[Any, Any, str], Tensor]

    def run(self, job: OpenJob, stage: str) -> dict[str, Tensor]:
        tokenizer = job.models.component(self.tokenizer)
        texts = job.prompts

        def encoded(network: Any) -> dict[str, Tensor]:
            tensors = (to_host(self.encode(network, tokenizer, text)) for text in texts)
            return {f"{self.result}_{index}": tensor for index, tensor in enumerate(tensors)}

        return job.run(stage, encoded, prompts=texts)


class Work(Protocol):
    """The half of a family of models that works on tensors. A module with these members is one."""

    text_stages: Mapping[str, TextStage]
    encoders: Mapping[str, Callable[..., Any]]

    @property
    def condition_type(self) -> type[Guidance[Any]]: ...

    def latents(self, job: OpenJob) -> dict[str, Tensor]:
        """Encode the latents that depend on the seed. That of the start picture is named `start`."""
        ...

    def encode_images(self, job: OpenJob) -> dict[str, Tensor]:
        """Encode the pictures as the vision encoder sees them, which does not depend on the seed."""
        ...

    def condition(self, job: OpenJob, section: Section, encodings: Encodings) -> Guidance[Any]: ...

    def history(self, job: OpenJob, encodings: Encodings) -> LatentsSoFar: ...

    def samplers(self, job: OpenJob, section: Section, request: GenerationRequest) -> dict[str, Sampler]:
        """Make the samplers by the stages that sample a section. Each gives its state to the next one."""
        ...

    def blocks(self, network: Any, noise: Tensor) -> Blocks: ...

    def denoiser(self, network: Any, condition: Any, context: CleanLatents, passes: Passes, /) -> Denoise: ...

    def joiner(self, job: OpenJob) -> Join: ...


def encode(job: OpenJob, work: Work) -> dict[str, Tensor]:
    return {**encode_texts(job, work), **work.latents(job), **work.encode_images(job)}


def latent_of(job: OpenJob, of: str = START_PICTURE, *, purpose: Purpose | None = "start_latent") -> Tensor:
    work = partial(encode_pictures, job, [job.pictures.fitted[of]], purpose)
    return job.captured("vae_encode", work, of=of)


def encode_pictures(
    job: OpenJob, pictures: Sequence[Image.Image], purpose: Purpose | None, number: int = 0
) -> Tensor:
    """Encode a picture, or 4 n + 1 frames of a video, with the VAE, and sample latents (1, C, n + 1, h, w).

    The distribution of the latents is taken from an earlier job with the same pictures, whatever its seed.

    Args:
        pictures: RGB pictures of the job's size.
        purpose, number: What the noise of the sample depends on besides the seed; None for the mean.
    """
    num_latent_frames = (len(pictures) - 1) // job.family.temporal_compression + 1
    shape = job.latents_shape(num_latent_frames)
    noise = noise_for(job.root.seed, purpose, number, shape) if purpose else torch.zeros(shape)

    def encoded() -> dict[str, Tensor]:
        progress = job.pieces("vae_encode")
        return {"moments": job.vae.encode(pixels_of(pictures), progress=progress, cancel=job.cancel)}

    size = str((len(pictures), *job.pictures.shape)).encode()
    checksum = sha256_of([size, *(picture.tobytes() for picture in pictures)])
    encodings = job.encoded(("vae",), encoded, job.vae_facts, pictures=checksum)
    return sample_latents(encodings["moments"], noise, job.models.component("vae").config)


def encode_texts(job: OpenJob, work: Work) -> dict[str, Tensor]:
    encodings = dict[str, Tensor]()
    texts = json.dumps(job.prompts)
    for name, stage in work.text_stages.items():
        encodings |= job.encoded((stage.network, stage.tokenizer), partial(stage.run, job, name), texts=texts)
    return encodings

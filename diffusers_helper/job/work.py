"""What a family of models brings to the loop in `pipeline.generate`, besides its numbers in `families/`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
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
from diffusers_helper.vae.codec import pixels_of, sampled

Encodings = Mapping[str, Tensor]
Sample = Callable[..., Tensor]
"""A sampler that knows its noise levels. Its other arguments are those of `sampling.euler.sample_euler`."""
Join = Callable[[Tensor, Section], tuple[np.ndarray, np.ndarray]]
"""A function that takes the decoded frames of each section, (T, H, W, 3) in -1 to 1, and returns those that
are final now, and those that the next section will still change."""


class LatentsSoFar(Protocol):
    """The clean latents made so far, and the parts of them that a section and its decoding need."""

    latents: Tensor

    def add(self, window: Tensor, section: Section) -> None: ...

    def context(self, section: Section) -> CleanLatents: ...

    def to_decode(self, section: Section) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class TextStage:
    """The encoding of a job's texts by one network.

    Attributes:
        network, tokenizer: The names of these parts of the model, which `encode` gets with each text.
        result: The name of the encodings, before the number of the text.
    """

    network: str
    tokenizer: str
    result: str
    encode: Callable[[Any, Any, str], Tensor]

    def run(self, job: OpenJob, stage: str) -> dict[str, Tensor]:
        tokenizer, texts = job.models.part(self.tokenizer), job.texts

        def encoded(network: Any) -> dict[str, Tensor]:
            each = (to_host(self.encode(network, tokenizer, text)) for text in texts)
            return {f"{self.result}_{n}": one for n, one in enumerate(each)}

        return job.run(stage, encoded, prompts=texts)


class Work(Protocol):
    """The half of a family of models that works on tensors. A module with these members is one.

    Attributes:
        texts: The stages that encode the texts, by their names.
        encoders: Those that encode pictures; each can be run by itself for the name of a setting, `of`.
    """

    texts: Mapping[str, TextStage]
    encoders: Mapping[str, Callable[..., Any]]

    def latents(self, job: OpenJob) -> dict[str, Tensor]:
        """Encode what depends on the seed. The latent of the start picture is named `start`."""
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

    def history(self, job: OpenJob, encodings: Encodings) -> LatentsSoFar: ...

    def sampler(self, job: OpenJob, section: Section, request: GenerationRequest) -> Sample: ...

    def blocks(self, network: Any, noise: Tensor) -> Blocks: ...

    def denoiser(self, network: Any, condition: Any, context: CleanLatents, passes: Passes, /) -> Denoise:
        """Return a function from noisy latents and a noise level to clean latents, by `passes`."""
        ...

    def joiner(self, job: OpenJob) -> Join: ...


def encode(job: OpenJob, work: Work) -> dict[str, Tensor]:
    """Encode what conditions the video, and return the encodings by name, on the host."""
    return {**encode_texts(job, work), **work.latents(job), **work.visions(job)}


def latent_of(job: OpenJob, of: str = START_PICTURE) -> Tensor:
    """Encode the picture of a setting with the VAE, as a stage, and return its latent."""
    work = partial(encode_pictures, job, [job.pictures.fitted[of]], "start_latent")
    return job.captured("vae_encode", work, of=of)


def encode_pictures(
    job: OpenJob, pictures: Sequence[Image.Image], purpose: Purpose, number: int = 0
) -> Tensor:
    """Encode a picture, or the 4 n + 1 frames of a video, with the VAE, and return a sample of the latents.

    Their distribution comes from an earlier job if it has had the same pictures, with whatever seed.

    Args:
        pictures: RGB pictures of the job's size.
        purpose, number: What the noise of the sample, (1, C, n + 1, h, w), depends on besides the seed.
    """
    count = (len(pictures) - 1) // job.family.latent_frames + 1
    noise = noise_for(job.root.seed, purpose, number, job.latents_shape(count))

    def encoded() -> dict[str, Tensor]:
        progress = job.pieces("vae_encode")
        return {"moments": job.vae.encode(pixels_of(pictures), progress=progress, cancel=job.cancel)}

    shape = str((len(pictures), *job.pictures.shape)).encode()
    checksum = sha256_of([shape, *(one.tobytes() for one in pictures)])
    found = job.encoded(("vae",), encoded, job.vae_facts, pictures=checksum)
    return sampled(found["moments"], noise, job.models.part("vae").config)


def encode_texts(job: OpenJob, work: Work) -> dict[str, Tensor]:
    """Return the encodings of the texts by name, from an earlier job if it has had the same ones."""
    found, texts = dict[str, Tensor](), json.dumps(job.texts)
    for name, stage in work.texts.items():
        parts = stage.network, stage.tokenizer
        found |= job.encoded(parts, partial(stage.run, job, name), texts=texts)
    return found

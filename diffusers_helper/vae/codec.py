"""The conversion of pictures to latents, and of latents to frames, by the VAE engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.vae.engine import Part, VaeEngine
from diffusers_helper.vae.passes import Progress


def encode_pictures(
    engine: VaeEngine[Any],
    pictures: Sequence[Image.Image],
    noise: Tensor,
    progress: Progress,
    cancel: CancelToken,
) -> Tensor:
    """Encode a picture, or the 4 n + 1 frames of a video, and return a sample of the latents.

    Args:
        pictures: RGB pictures of one size, whose sides are multiples of 8.
        noise: (1, 16, n + 1, height / 8, width / 8), the noise with which the posterior is sampled.

    Returns:
        The latents in fp32 on the CPU, in the shape of `noise`.
    """
    frames = np.stack([np.asarray(one) for one in pictures])
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1
    posterior = DiagonalGaussianDistribution(engine.encode(pixels, progress=progress, cancel=cancel))
    return (posterior.mean.float() + posterior.std.float() * noise) * _scale(engine)


def decode_latents(
    engine: VaeEngine[Any], latents: Tensor, part: Part, progress: Progress, cancel: CancelToken
) -> Tensor:
    """Decode latents (1, 16, T, height / 8, width / 8) to frames (4 T - 3, height, width, 3).

    Args:
        latents: The latents to decode for a section, in fp32 on the CPU.

    Returns:
        The frames in fp32 on the CPU, about -1 to 1.
    """
    frames = engine.decode(latents / _scale(engine), part=part, progress=progress, cancel=cancel)
    return frames[0].permute(1, 2, 3, 0).float()


def _scale(engine: VaeEngine[Any]) -> float:
    return engine.owner.vae.config["scaling_factor"]

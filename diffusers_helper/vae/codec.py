"""The conversion of pictures to latents, and of latents to frames, by the VAE engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image
from torch import Tensor

from diffusers_helper.cancel import CancelToken
from diffusers_helper.vae.engine import VaeEngine, VideoPart
from diffusers_helper.vae.passes import Progress


def pixels_of(pictures: Sequence[Image.Image]) -> Tensor:
    """Convert RGB pictures of one size to the frames (1, 3, F, H, W) of a video, in fp32 from -1 to 1."""
    frames = np.stack([np.asarray(picture) for picture in pictures])
    return torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 127.5 - 1


def sample_latents(moments: Tensor, noise: Tensor, config: Mapping[str, Any]) -> Tensor:
    posterior = DiagonalGaussianDistribution(moments)
    mean, scale = latent_statistics(config)
    return (posterior.mean.float() + posterior.std.float() * noise - mean) * scale


def decode_latents(
    engine: VaeEngine[Any], latents: Tensor, part: VideoPart, progress: Progress, cancel: CancelToken
) -> Tensor:
    """Decode latents (1, 16, T, h, w) to frames (4 T - 3, 8 h, 8 w, 3), about -1 to 1, in fp32 on the CPU."""
    mean, scale = latent_statistics(engine.owner.vae.config)
    frames = engine.decode(latents / scale + mean, part=part, progress=progress, cancel=cancel)
    return frames[0].permute(1, 2, 3, 0).float()


def latent_statistics(config: Mapping[str, Any]) -> tuple[Tensor | float, Tensor | float]:
    if "latents_mean" not in config:
        return 0.0, config["scaling_factor"]
    mean, std = (torch.tensor(config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
    return mean, 1 / std

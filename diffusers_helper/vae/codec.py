"""Between pixels and latents, and the blending of frames that two sections both decode."""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image
from torch import Tensor

from diffusers_helper.vae.families import family_of
from diffusers_helper.vae.passes import Pieces, encode_pass, grid_of
from diffusers_helper.vae.plan import Tiles
from diffusers_helper.vae.sections import SectionDecoder


def encode_picture(
    vae: AutoencoderKLHunyuanVideo, picture: Image.Image, noise: Tensor, tiles: Tiles, pieces: Pieces
) -> Tensor:
    """A sample of the picture's latent.

    Args:
        picture: RGB, both sides multiples of 8.
        noise: (1, 16, 1, height / 8, width / 8), what the sample of the posterior is drawn with.

    Returns: fp32 on the CPU, in the shape of `noise`.
    """
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None, :, None].float() / 127.5 - 1
    family = family_of(vae)
    pieces.total = len(grid_of(noise.shape[-2:], tiles, family.shrink).places)
    moments = encode_pass(family, pixels, tiles, pieces)
    posterior = DiagonalGaussianDistribution(moments)
    return (posterior.mean.float() + posterior.std.float() * noise) * vae.config["scaling_factor"]


def decode_latents(
    vae: AutoencoderKLHunyuanVideo,
    latents: Tensor,
    begin: int,
    decoder: SectionDecoder,
    tiles: Tiles,
    pieces: Pieces,
) -> Tensor:
    """Frames (4 T - 3, height, width, 3) of latents (1, 16, T, height / 8, width / 8).

    Args:
        begin: place of the first latent frame, counted from a point that is the same for all of a video.
        decoder: remembers what the section before has decoded.

    Returns: fp32 on the CPU, about -1 to 1.
    """
    scaled = latents / vae.config["scaling_factor"]
    return decoder.decode(family_of(vae), scaled, begin, tiles, pieces)[0].permute(1, 2, 3, 0).float()

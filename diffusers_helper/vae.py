"""Between pixels and latents, and the blending of frames that two sections both decode."""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKLHunyuanVideo
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image
from torch import Tensor

from diffusers_helper.packing import Mode, Section
from diffusers_helper.vae_engine import Pieces, encode_pass, grid_of
from diffusers_helper.vae_families import family_of
from diffusers_helper.vae_plan import Tiles
from diffusers_helper.vae_sections import SectionDecoder


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


def to_uint8(frames: Tensor) -> np.ndarray:
    """Pixels of frames in -1 to 1: out of range is cut, the rest rounded to 0 to 255."""
    return (frames / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).numpy()


class FrameBlender:
    """Joins what the sections decode, and tells frames that are final from those that will still change.

    Neighbouring sections both decode the frames where they meet; over those the picture changes linearly from
    the earlier section's to the later one's, as in FramePack. Only frames that face the next section are
    kept.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._pending: Tensor | None = None

    def add(self, frames: Tensor, section: Section) -> tuple[np.ndarray, np.ndarray]:
        """Takes the frames that a section decoded, (T, H, W, 3) in -1 to 1.

        Where the frames of the section before are not known, nothing is blended; `pending` is right even so.

        Returns: (final, pending) as `GrowingVideo.add_section` takes them.

        Raises:
            ValueError: if there are not as many frames as the plan says.
        """
        if len(frames) != section.decoded_frames:
            raise ValueError(f"{len(frames)} frames were decoded; expected {section.decoded_frames}.")
        overlap, pending = section.overlap_frames, section.pending_frames
        if self._pending is not None and overlap:
            # From 1 to 0: how much of the frame that is earlier in time.
            earlier = torch.linspace(1, 0, overlap).view(-1, 1, 1, 1)
            if self._mode == "inverted":
                rest, met = frames[:-overlap], frames[-overlap:]
                frames = torch.cat([rest, earlier * met + (1 - earlier) * self._pending])
            else:
                met, rest = frames[:overlap], frames[overlap:]
                frames = torch.cat([earlier * self._pending + (1 - earlier) * met, rest])
        if self._mode == "inverted":
            kept, final = frames[:pending], frames[pending:]
        else:
            final, kept = frames[: len(frames) - pending], frames[len(frames) - pending :]
        self._pending = kept.clone() if pending else None
        return to_uint8(final), to_uint8(kept)

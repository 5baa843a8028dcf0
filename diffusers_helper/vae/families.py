"""The kinds of video VAE, which differ in how a pass is made and whether frames can follow one another.

The VAEs are those of diffusers and belong to their owner: nothing in them is changed, not even their
settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, patchify, unpatchify
from torch import Tensor, nn

from diffusers_helper.errors import InputError


class Family(Protocol):
    """A VAE with one interface for the engine. Latents are in the scale that its own `decode` takes.

    Attributes:
        has_stream: Whether frames can follow one another exactly.
        shrink: Pixels for one latent along each side. Along time it is always 4: n latent frames are 4 n - 3
            frames.
        dtype: The type that it computes in.
    """

    has_stream: bool
    shrink: int
    dtype: torch.dtype

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        """Yield frames (B, 3, F, H, W) on the device, from one pass or from one latent frame after the other.

        The latents may be on any device, in any type.
        """
        ...

    def encode(self, frames: Tensor) -> Tensor:
        """Return moments (B, 2 C, T, H / shrink, W / shrink) on the device; `frames` may be on any device."""
        ...


class HunyuanFamily:
    """`AutoencoderKLHunyuanVideo`: attention and normalisation look at all frames of a pass."""

    has_stream = False

    def __init__(self, vae: AutoencoderKLHunyuanVideo) -> None:
        self._vae: Any = vae
        self.shrink = int(self._vae.spatial_compression_ratio)
        self.dtype: torch.dtype = vae.dtype

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        latents = latents.to(self._vae.device, self.dtype)
        yield self._vae.decoder(self._vae.post_quant_conv(latents))

    def encode(self, frames: Tensor) -> Tensor:
        frames = frames.to(self._vae.device, self.dtype)
        return self._vae.quant_conv(self._vae.encoder(frames))


class WanFamily:
    """`AutoencoderKLWan`: causal, with a memory of the last frames at each convolution.

    Its own `decode` processes the frames in the same way and keeps that memory in the module. Here each pass
    has its own memory, so that nothing remains of a pass that was interrupted.
    """

    has_stream = True

    def __init__(self, vae: AutoencoderKLWan) -> None:
        self._vae: Any = vae
        self.shrink = int(self._vae.spatial_compression_ratio)
        self.dtype: torch.dtype = vae.dtype

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        vae, memory = self._vae, _memory(self._vae.decoder)
        states = vae.post_quant_conv(latents.to(vae.device, self.dtype))
        for k in range(latents.shape[2]):
            frames = vae.decoder(states[:, :, k : k + 1], feat_cache=memory, feat_idx=[0], first_chunk=k == 0)
            if vae.config.patch_size is not None:
                frames = unpatchify(frames, patch_size=vae.config.patch_size)
            yield frames.clamp(-1, 1)

    def encode(self, frames: Tensor) -> Tensor:
        vae, memory = self._vae, _memory(self._vae.encoder)
        ends = range(1, frames.shape[2] + 1, 4)
        parts: list[Tensor] = []
        for end in ends:
            part = frames[:, :, max(0, end - 4) : end].to(vae.device, self.dtype)
            if vae.config.patch_size is not None:
                part = patchify(part, patch_size=vae.config.patch_size)
            parts.append(vae.encoder(part, feat_cache=memory, feat_idx=[0]))
        return vae.quant_conv(torch.cat(parts, dim=2))


def _memory(network: nn.Module) -> list[Any]:
    """Return a place for the last frames at each convolution, as diffusers counts them."""
    return [None] * sum(isinstance(module, WanCausalConv3d) for module in network.modules())


def family_of(vae: nn.Module) -> Family:
    """Return the family of a VAE.

    Raises:
        InputError: If it is of an unknown kind.
    """
    if isinstance(vae, AutoencoderKLHunyuanVideo):
        return HunyuanFamily(vae)
    if isinstance(vae, AutoencoderKLWan):
        return WanFamily(vae)
    raise InputError(
        f"The VAE is {type(vae).__name__}; expected AutoencoderKLHunyuanVideo or AutoencoderKLWan.",
        "Use a model with one of these.",
    )

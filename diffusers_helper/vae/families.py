"""The kinds of VAE, which differ in how they compute a pass and whether they can stream frames.

The VAEs belong to their owner: nothing in them is changed, not even their settings. The classes of diffusers
are known by their names, because ComfyUI's nodes use this module where diffusers may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.models.sizes import Network, Weights
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.vae_estimates import VaeNeeds, decode_bytes, encode_bytes


class VaeFamily:
    """A VAE with one interface for the engine. Latents are in the scale that its own `decode` takes.

    Attributes:
        has_stream: Whether frames can be computed one after the other with the exact result.
        shrink: The pixels per latent along each side.
        stride: The frames per latent frame after the first, which stands for one.
    """

    has_stream: bool
    stride = 4

    def __init__(self, vae: Any) -> None:
        self._vae = vae
        self.shrink = int(getattr(vae, "spatial_compression_ratio", 0))

    # Diffusers looks at all layers for these, and they stay the same while a family is in use.
    @cached_property
    def dtype(self) -> torch.dtype:
        return cast(torch.dtype, self._vae.dtype)

    @cached_property
    def _device(self) -> torch.device:
        return cast(torch.device, self._vae.device)

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        """Yield frames (B, 3, F, H, W) on the device, from one pass or from one latent frame after the other.

        The latents may be on any device, in any type.
        """
        raise NotImplementedError

    def encode(self, frames: Tensor) -> Tensor:
        """Return moments (B, 2 C, T, H / shrink, W / shrink) on the device; `frames` may be on any device."""
        raise NotImplementedError

    def needs(self, dtype: torch.dtype, backend: Backend) -> VaeNeeds:
        """Return the memory that the VAE needs when it computes in this type."""
        total = sum(parameter.numel() for parameter in self._vae.parameters()) * dtype.itemsize
        from diffusers_helper.loading.quick_vae import FoldedUpsample

        is_folded = any(isinstance(layer, FoldedUpsample) for layer in self._vae.modules())
        network = Network(Weights("vae", total), self._vae.config, dtype.itemsize, 0)
        return VaeNeeds(
            self.has_stream, total,
            partial(decode_bytes, network, backend=backend, is_folded=is_folded),
            partial(encode_bytes, network, backend=backend),
        )  # fmt: skip


class HunyuanFamily(VaeFamily):
    """`AutoencoderKLHunyuanVideo`, whose attention and normalisation see all frames of a pass."""

    has_stream = False

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        latents = latents.to(self._device, self.dtype)
        yield self._vae.decoder(self._vae.post_quant_conv(latents))

    def encode(self, frames: Tensor) -> Tensor:
        frames = frames.to(self._device, self.dtype)
        return self._vae.quant_conv(self._vae.encoder(frames))


class WanFamily(VaeFamily):
    """`AutoencoderKLWan`, which is causal and has a memory of the last frames at each convolution.

    Its own `decode` processes the frames in the same way and keeps that memory in the module. Here each pass
    has its own memory, so nothing remains of an interrupted pass.
    """

    has_stream = True

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        vae, memory = self._vae, empty_memory(self._vae.decoder)
        states = vae.post_quant_conv(latents.to(self._device, self.dtype))
        for k in range(latents.shape[2]):
            frames = vae.decoder(states[:, :, k : k + 1], feat_cache=memory, feat_idx=[0], first_chunk=k == 0)
            if vae.config.patch_size is not None:
                frames = unpatchify(frames, vae.config.patch_size)
            yield frames.clamp(-1, 1)

    def encode(self, frames: Tensor) -> Tensor:
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        vae, memory = self._vae, empty_memory(self._vae.encoder)
        ends = range(1, frames.shape[2] + 1, 4)
        parts: list[Tensor] = []
        for end in ends:
            part = frames[:, :, max(0, end - 4) : end].to(self._device, self.dtype)
            if vae.config.patch_size is not None:
                part = patchify(part, patch_size=vae.config.patch_size)
            parts.append(vae.encoder(part, feat_cache=memory, feat_idx=[0]))
        return vae.quant_conv(torch.cat(parts, dim=2))


def empty_memory(network: nn.Module) -> list[Any]:
    """Return a memory of the last frames without any, with a place for each of Wan's convolutions."""
    return [None] * sum(isinstance(module, nn.Conv3d) for module in network.modules())


def unpatchify(frames: Tensor, patch: int) -> Tensor:
    """Return frames (B, C, F, H p, W p) from (B, C p p, F, H, W), as `unpatchify` of diffusers does."""
    parts = frames.unflatten(1, (-1, patch, patch)).permute(0, 1, 4, 5, 3, 6, 2)
    return parts.flatten(5, 6).flatten(3, 4)


_DIFFUSERS: dict[str, Callable[[Any], VaeFamily]] = {
    "AutoencoderKLHunyuanVideo": HunyuanFamily,
    "AutoencoderKLWan": WanFamily,
}


def family_of(vae: nn.Module) -> VaeFamily:
    """Return the family of a VAE, which may be one itself, or raise InputError for an unknown kind."""
    if isinstance(vae, VaeFamily):
        return vae
    for kind in type(vae).__mro__:
        if kind.__name__ in _DIFFUSERS and kind.__module__.startswith("diffusers."):
            return _DIFFUSERS[kind.__name__](vae)
    raise InputError(
        f"The VAE is {type(vae).__name__}; expected {', '.join(_DIFFUSERS)}.",
        "Use a model with one of these.",
    )

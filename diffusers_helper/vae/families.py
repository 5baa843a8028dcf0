"""The kinds of VAE, which differ in how they compute a pass and whether they can stream frames.

The VAEs belong to their owner: nothing in them is changed, not even their settings. The classes of diffusers
are compared by name, because ComfyUI's nodes use this module where diffusers may be missing.
"""

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
    """A VAE with one interface for the engine. Latents are in the scale that its own `decode` takes."""

    has_stream: bool
    temporal_compression = 4

    def __init__(self, vae: Any) -> None:
        self._vae = vae
        self.spatial_compression = int(getattr(vae, "spatial_compression_ratio", 0))

    # Diffusers looks at all layers for these, and they stay the same while a family is in use.
    @cached_property
    def dtype(self) -> torch.dtype:
        return cast(torch.dtype, self._vae.dtype)

    @cached_property
    def _device(self) -> torch.device:
        return cast(torch.device, self._vae.device)

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        """Yield frames (B, 3, F, H, W) on the device, in one pass or frame by frame."""
        raise NotImplementedError

    def encode(self, frames: Tensor) -> Tensor:
        """Encode frames on any device to moments (B, 2 C, T, h, w) on the VAE's device."""
        raise NotImplementedError

    def needs(self, dtype: torch.dtype, backend: Backend) -> VaeNeeds:
        from diffusers_helper.loading.quick_vae import FoldedUpsample

        weights_bytes = sum(parameter.numel() for parameter in self._vae.parameters()) * dtype.itemsize
        is_folded = any(isinstance(layer, FoldedUpsample) for layer in self._vae.modules())
        network = Network(Weights("vae", weights_bytes), self._vae.config, dtype.itemsize, 0)
        return VaeNeeds(
            self.has_stream, weights_bytes,
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
    """`AutoencoderKLWan`, which is causal and caches the last frames at each convolution (`feat_cache`).

    Its own `decode` processes the frames in the same way, but has the cache in the module. Here each pass has
    its own cache, so nothing remains of an interrupted pass.
    """

    has_stream = True

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        vae = self._vae
        feat_cache = empty_feat_cache(vae.decoder)
        hidden_states = vae.post_quant_conv(latents.to(self._device, self.dtype))
        for index in range(latents.shape[2]):
            chunk = hidden_states[:, :, index : index + 1]
            frames = vae.decoder(chunk, feat_cache=feat_cache, feat_idx=[0], first_chunk=index == 0)
            if vae.config.patch_size is not None:
                frames = unpatchify(frames, vae.config.patch_size)
            yield frames.clamp(-1, 1)

    def encode(self, frames: Tensor) -> Tensor:
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        vae = self._vae
        feat_cache = empty_feat_cache(vae.encoder)
        moments: list[Tensor] = []
        for end in range(1, frames.shape[2] + 1, 4):
            chunk = frames[:, :, max(0, end - 4) : end].to(self._device, self.dtype)
            if vae.config.patch_size is not None:
                chunk = patchify(chunk, patch_size=vae.config.patch_size)
            moments.append(vae.encoder(chunk, feat_cache=feat_cache, feat_idx=[0]))
        return vae.quant_conv(torch.cat(moments, dim=2))


def empty_feat_cache(network: nn.Module) -> list[Any]:
    return [None] * sum(isinstance(module, nn.Conv3d) for module in network.modules())


def unpatchify(frames: Tensor, patch_size: int) -> Tensor:
    """Turn (B, C p p, F, H, W) into frames (B, C, F, H p, W p), as `unpatchify` of diffusers does."""
    patches = frames.unflatten(1, (-1, patch_size, patch_size)).permute(0, 1, 4, 5, 3, 6, 2)
    return patches.flatten(5, 6).flatten(3, 4)


_DIFFUSERS: dict[str, Callable[[Any], VaeFamily]] = {
    "AutoencoderKLHunyuanVideo": HunyuanFamily,
    "AutoencoderKLWan": WanFamily,
}


def vae_family(vae: nn.Module) -> VaeFamily:
    if isinstance(vae, VaeFamily):
        return vae
    for kind in type(vae).__mro__:
        if kind.__name__ in _DIFFUSERS and kind.__module__.startswith("diffusers."):
            return _DIFFUSERS[kind.__name__](vae)
    raise InputError(
        f"The VAE is {type(vae).__name__}; expected {', '.join(_DIFFUSERS)}.",
        "Use a model with one of these.",
    )

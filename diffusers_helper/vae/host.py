"""ComfyUI's VAE, `comfy.sd.VAE`, in a form that the engine can drive.

No module of ComfyUI is imported; only the attributes and methods of the object are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.vae_estimates import VaeNeeds
from diffusers_helper.vae.families import family_of, unpatchify

_PATCH = 2  # Wan 2.2 works on patches of 2x2 pixels, which ComfyUI's object does not report
Bytes = Callable[[tuple[int, ...], torch.dtype], float]


class ComfyVae(Protocol):
    """The parts of `comfy.sd.VAE` that are used here."""

    first_stage_model: Any
    patcher: Any
    vae_dtype: torch.dtype
    device: torch.device
    latent_dim: int
    latent_channels: int
    memory_used_decode: Bytes
    memory_used_encode: Bytes

    def spacial_compression_decode(self) -> int: ...

    def temporal_compression_decode(self) -> int | None: ...


class HostVae(nn.Module):
    """The network of a `comfy.sd.VAE`, with facts that only the VAE object knows.

    The network is a submodule. It is neither moved nor changed.

    Attributes:
        network: The object's `first_stage_model`.
        shrink, stride: See `vae.families.VaeFamily`.
        has_stream: Whether the network is Wan's, whose frames can be streamed exactly.
        dtype: The type of the latents and frames that it gets.
        casts: Whether each layer converts its weights to that type when it runs, wherever they are. With
            dynamic memory they stay in the file's type and on the host, and a copy of the network would free
            ComfyUI's buffers a second time.
    """

    def __init__(self, vae: ComfyVae) -> None:
        """Collect the network and the facts of a VAE.

        Raises:
            InputError: If its latents are neither pictures nor video, but for example sound.
        """
        super().__init__()
        network = vae.first_stage_model
        if (kind := unsupported(vae)) != "":
            raise InputError(f"The VAE is {kind}.", "Decode with ComfyUI's own node.")
        self.network: Any = network
        self.device, self.dtype = vae.device, vae.vae_dtype
        self.casts = bool(getattr(vae.patcher, "is_dynamic", bool)())
        self.latent_dim, self.channels = vae.latent_dim, vae.latent_channels
        self.shrink = int(vae.spacial_compression_decode())
        self.stride = (vae.temporal_compression_decode() or 1) if vae.latent_dim == 3 else 1
        self.is_wan = type(network).__name__ == "WanVAE"
        self.has_stream = self.is_wan or vae.latent_dim == 2
        self.decode_need, self.encode_need = vae.memory_used_decode, vae.memory_used_encode


def unsupported(vae: ComfyVae) -> str:
    """Return the reason why the engine cannot drive a VAE, or "" if it can."""
    network = vae.first_stage_model
    if network is None:
        return "missing from the file"
    if vae.latent_dim not in (2, 3) or getattr(vae, "extra_1d_channel", None) is not None:
        return f"{type(network).__name__}, whose latents are neither pictures nor video"
    decoder = getattr(network, "decoder", None)
    if type(decoder).__name__ == "VideoDecoder" or type(network).__name__ in ("StageA", "StageC_coder"):
        return f"{type(network).__name__}, which decodes several latents at once or has no pictures"
    return ""


class HostFamily:
    """ComfyUI's VAE as a `VaeFamily`.

    It decodes pictures one by one, Wan's video as a stream, and other video in one pass.
    """

    def __init__(self, vae: HostVae) -> None:
        self._vae = vae
        self.has_stream, self.shrink, self.stride = vae.has_stream, vae.shrink, vae.stride
        kept = () if vae.casts else vae.network.parameters()
        self.dtype: torch.dtype = next((value.dtype for value in kept), vae.dtype)

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        if self._vae.is_wan:
            return self._stream(latents)
        if self._vae.latent_dim == 2:
            return (self._plain(self._vae.network.decode, frame) for frame in latents.unbind(2))
        return iter((self._vae.network.decode(self._placed(latents)),))

    def encode(self, frames: Tensor) -> Tensor:
        """Return latents instead of moments, because ComfyUI's VAEs give the mean."""
        network = self._vae.network
        if self._vae.latent_dim == 2:
            parts = [self._plain(network.encode, frame) for frame in frames.unbind(2)]
            return torch.cat(parts, dim=2)
        return network.encode(self._placed(frames))

    def needs(self, dtype: torch.dtype, backend: Backend) -> VaeNeeds:
        return _HostNeeds(self._vae, dtype)

    def _placed(self, source: Tensor) -> Tensor:
        return source.to(self.dtype).to(self._vae.device)

    def _plain(self, work: Callable[[Tensor], Tensor], picture: Tensor) -> Tensor:
        return work(self._placed(picture)).unsqueeze(2)

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        """Yield Wan's frames, with a memory of the last frames that belongs to this pass alone."""
        network = self._vae.network
        memory: list[Any] = [None] * sum(isinstance(part, nn.Conv3d) for part in network.decoder.modules())
        has_patches = "first_chunk" in inspect.signature(network.decoder.forward).parameters
        states = network.conv2(self._placed(latents))
        # Newer versions keep what they need of the past only if they get two latent frames after the first.
        step = 2 if hasattr(network.decoder, "run_up") else 1
        for k in (0, *range(1, latents.shape[2], step)):
            first = {"first_chunk": True} if has_patches and k == 0 else {}
            states_k = states[:, :, k : k + step if k else 1]
            frames = network.decoder(states_k, feat_cache=memory, feat_idx=[0], **first)
            frames = torch.cat(frames, dim=2) if isinstance(frames, list) else frames
            frames = unpatchify(frames, _PATCH) if has_patches else frames
            yield from frames.split(self.stride, dim=2)
            del frames  # otherwise they stay on the device while the next ones are decoded


class _HostNeeds:
    """ComfyUI's estimates of the memory, which are never less than those of its own nodes."""

    def __init__(self, vae: HostVae, dtype: torch.dtype) -> None:
        self._vae, self._dtype = vae, dtype
        self.has_stream, self.stride = vae.has_stream, vae.stride
        self.weights_bytes = sum(value.numel() for value in vae.parameters()) * dtype.itemsize

    def decode_bytes(self, at_once: int, height: int, width: int, latents: int) -> int:
        shrink = self._vae.shrink
        return self._bytes(
            self._vae.decode_need, self._vae.channels, at_once, height // shrink, width // shrink
        )

    def encode_bytes(self, at_once: int, height: int, width: int, latents: int) -> int:
        return self._bytes(self._vae.encode_need, 3, self.stride * (at_once - 1) + 1, height, width)

    def _bytes(self, need: Bytes, channels: int, count: int, height: int, width: int) -> int:
        time = (count,) if self._vae.latent_dim == 3 else ()
        return int(need((1, channels, *time, height, width), self._dtype))


family_of.register(HostVae, HostFamily)

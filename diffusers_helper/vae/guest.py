"""A VAE that belongs to another program, such as ComfyUI's `comfy.sd.VAE`, within the memory that is free.

No module of ComfyUI is imported; only the attributes and methods of the object are used.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from diffusers_helper.errors import InputError
from diffusers_helper.memory.device import Device
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.out_of_memory import LONGTAKE, OutOfDeviceMemory, OutOfMemory, Remedy
from diffusers_helper.planning.profiles import detect
from diffusers_helper.planning.vae import Task, VaePlan, VaeSettings, Video, plan_vae, vae_plans
from diffusers_helper.planning.vae_estimates import VaeNeeds
from diffusers_helper.vae.engine import Part
from diffusers_helper.vae.families import VaeFamily, empty_memory, family_of, unpatchify
from diffusers_helper.vae.passes import DTYPES

_log = logging.getLogger(__name__)


class Guest:
    """The `vae.engine.Owner` of a VAE that is already on the device and stays unchanged.

    In another precision, a copy of it computes. When a plan runs out of memory, neither it nor one that needs
    as much memory is tried again.

    Attributes:
        dtype: The type that it computes in.
        plan: The plan that was tried last; None before the first.
        failures: The number of plans that ran out of memory.
        sentences: Those of the interface that shows the remedies.
    """

    sentences: Mapping[Remedy, str] = LONGTAKE

    def __init__(
        self,
        vae: nn.Module,
        device: Device,
        settings: VaeSettings = VaeSettings(),
        backend: Backend = Backend(),
    ) -> None:
        self.vae, self.device, self.cleanup_frequency = vae, device, settings.cleanup_frequency
        self._settings, self._backend = settings, backend
        self.dtype = DTYPES.get(settings.precision, family_of(vae).dtype)
        self.plan: VaePlan | None = None
        self.failures = 0
        self._failed: tuple[VaePlan, OutOfMemory] | None = None

    def plans(self, task: Task, video: Video) -> tuple[VaePlan, ...]:
        """Return the plan for the memory that is free now, and the plans to try if it does not suffice."""
        needs = family_of(self.vae).needs(self.dtype, self._backend)
        plans = vae_plans(needs, video, task, self._settings)
        copied = needs.weights_bytes if self._needs_copy() else 0
        return plan_vae(plans, max(0, self._free_bytes(plans[0].working_bytes) - copied), self._settings)

    def plan_vae(self, task: Task, video: Video) -> VaePlan:
        for plan in self.plans(task, video):
            if self._failed is None or plan.working_bytes < self._failed[0].working_bytes:
                _log.info("%s: %s", task, plan.reason)
                self.plan = plan
                return plan
        assert self._failed is not None
        raise OutOfDeviceMemory(
            self._failed[1],
            smaller_plans=self.failures - 1,
            is_apu=detect({}).is_apu,
            sentences=self.sentences,
        )

    @contextmanager
    def vae_on_device(self, task: Task, part: Part | None) -> Iterator[nn.Module]:
        """Yield the VAE, or a copy of it in the precision that it computes in."""
        vae = self.vae
        with self.device:
            if self._needs_copy():
                # `deepcopy` then uses these tensors as if it had already copied them, so none is copied first
                # in its present type.
                tensors = (one for one in chain(vae.parameters(), vae.buffers()) if one.is_floating_point())
                vae = copy.deepcopy(vae, {id(one): one.detach().to(self.dtype) for one in tensors})
            elif isinstance(vae, HostVae):
                vae = copy.copy(vae)
                vae.asked = self.dtype
            yield vae

    def step_down(self, details: OutOfMemory) -> None:
        _log.warning("out of memory: %s", details.text)
        assert self.plan is not None
        self._failed = self.plan, details
        self.failures += 1
        self.device.empty_cache()

    def widen(self) -> None:
        _log.warning("values in %s are not finite; computed again in fp32", self.dtype)
        self.dtype = torch.float32

    def _free_bytes(self, wanted: int) -> int:
        """Return the free memory, of which the first plan would take `wanted` bytes."""
        return self.device.free_bytes()

    def _needs_copy(self) -> bool:
        return not getattr(self.vae, "casts", False) and family_of(self.vae).dtype != self.dtype


_PATCH = 2  # Wan 2.2 works on patches of 2x2 pixels, which ComfyUI's object does not report


class HostVae(nn.Module, VaeFamily):
    """A `comfy.sd.VAE` as a `VaeFamily`.

    It decodes pictures one by one, Wan's video as a stream, and other video in one pass. The network is
    neither moved nor changed.

    Attributes:
        casts: Whether each layer converts its weights when it runs, wherever they are. With dynamic memory
            they stay in the file's type and on the host, and a copy of the network would free ComfyUI's
            buffers a second time.
        asked: The type that a network that casts computes in.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        if kind := unsupported(vae):
            raise InputError(f"The VAE is {kind}.", "Decode with ComfyUI's own node.")
        self.network: Any = vae.first_stage_model
        self.asked: torch.dtype = vae.vae_dtype
        self.casts = bool(getattr(vae.patcher, "is_dynamic", bool)())
        self._place, self._is_video, self._channels = vae.device, vae.latent_dim == 3, vae.latent_channels
        self.shrink = int(vae.spacial_compression_decode())
        self.stride = (vae.temporal_compression_decode() or 1) if self._is_video else 1
        self._is_wan = type(self.network).__name__ == "WanVAE"
        self.has_stream = self._is_wan or not self._is_video
        self._decode_need, self._encode_need = vae.memory_used_decode, vae.memory_used_encode

    @property
    def dtype(self) -> torch.dtype:
        kept = () if self.casts else self.network.parameters()
        return next((value.dtype for value in kept), self.asked)

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        if self._is_wan:
            return self._stream(latents)
        parts = (latents,) if self._is_video else latents.unbind(2)
        return (self._whole(self.network.decode, part) for part in parts)

    def encode(self, frames: Tensor) -> Tensor:
        """Return latents instead of moments, because ComfyUI's VAEs give the mean."""
        parts = (frames,) if self._is_video else frames.unbind(2)
        return torch.cat([self._whole(self.network.encode, part) for part in parts], dim=2)

    def needs(self, dtype: torch.dtype, backend: Backend) -> VaeNeeds:
        def measured(need: Callable[..., float], channels: int, *size: int) -> int:
            # ComfyUI's estimates are never less than those of its own nodes.
            return int(need((1, channels, *(size if self._is_video else size[1:])), dtype))

        def decode_bytes(at_once: int, height: int, width: int, latents: int) -> int:
            sides = height // self.shrink, width // self.shrink
            return measured(self._decode_need, self._channels, at_once, *sides)

        def encode_bytes(at_once: int, height: int, width: int, latents: int) -> int:
            return measured(self._encode_need, 3, self.stride * (at_once - 1) + 1, height, width)

        weights = sum(value.numel() for value in self.parameters()) * dtype.itemsize
        return VaeNeeds(self.has_stream, weights, decode_bytes, encode_bytes)

    def _placed(self, source: Tensor) -> Tensor:
        return source.to(self.dtype).to(self._place)

    def _whole(self, work: Callable[[Tensor], Tensor], source: Tensor) -> Tensor:
        result = work(self._placed(source))
        return result if self._is_video else result.unsqueeze(2)

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        """Yield Wan's frames, with a memory of the last frames that belongs to this pass alone."""
        network, memory = self.network, empty_memory(self.network.decoder)
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


def unsupported(vae: Any) -> str:
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

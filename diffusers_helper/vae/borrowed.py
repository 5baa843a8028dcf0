"""A VAE that belongs to another program, such as ComfyUI's `comfy.sd.VAE`, within the memory that is free."""

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
from diffusers_helper.vae.engine import VideoPart
from diffusers_helper.vae.families import VaeFamily, empty_feat_cache, unpatchify, vae_family
from diffusers_helper.vae.passes import DTYPES

_log = logging.getLogger(__name__)


class BorrowedVaeOwner:
    """The `vae.engine.VaeOwner` of a VAE that is already on the device and stays unchanged.

    In another precision, a copy of it computes. After the memory ran out, only plans that need less memory
    are tried.
    """

    sentences: Mapping[Remedy, str] = LONGTAKE

    def __init__(
        self,
        vae: nn.Module,
        device: Device,
        settings: VaeSettings = VaeSettings(),
        backend: Backend = Backend(),
    ) -> None:
        self.vae = vae
        self.device = device
        self.cleanup_frequency = settings.cleanup_frequency
        self._settings = settings
        self._backend = backend
        self.dtype = DTYPES.get(settings.precision, vae_family(vae).dtype)
        self.plan: VaePlan | None = None
        self.failures = 0
        self._failed: tuple[VaePlan, OutOfMemory] | None = None

    def plans(self, task: Task, video: Video) -> tuple[VaePlan, ...]:
        needs = vae_family(self.vae).needs(self.dtype, self._backend)
        plans = vae_plans(needs, video, task, self._settings)
        copy_bytes = needs.weights_bytes if self._needs_copy() else 0
        return plan_vae(plans, max(0, self._free_bytes(plans[0].working_bytes) - copy_bytes), self._settings)

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
    def vae_on_device(self, task: Task, part: VideoPart | None) -> Iterator[nn.Module]:
        vae = self.vae
        with self.device:
            if self._needs_copy():
                # `deepcopy` takes these tensors for copies, so none is copied first in its present dtype.
                tensors = chain(vae.parameters(), vae.buffers())
                floats = (tensor for tensor in tensors if tensor.is_floating_point())
                vae = copy.deepcopy(vae, {id(tensor): tensor.detach().to(self.dtype) for tensor in floats})
            elif isinstance(vae, ComfyVae):
                vae = copy.copy(vae)
                vae.requested_dtype = self.dtype
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

    def _free_bytes(self, working_bytes: int) -> int:
        return self.device.free_bytes()

    def _needs_copy(self) -> bool:
        return not getattr(self.vae, "casts", False) and vae_family(self.vae).dtype != self.dtype


_PATCH = 2  # Wan 2.2 works on patches of 2x2 pixels, which ComfyUI's object does not report


class ComfyVae(nn.Module, VaeFamily):
    """A `comfy.sd.VAE` as a `VaeFamily`, which neither moves nor changes the network.

    It decodes pictures one by one, Wan's video as a stream, and other video in one pass. If it `casts`, each
    layer converts its weights when it runs: with dynamic memory they stay on the host, and a copy of the
    network would free ComfyUI's buffers a second time.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        if reason := unsupported(vae):
            raise InputError(f"The VAE is {reason}.", "Decode with ComfyUI's own node.")
        self.network: Any = vae.first_stage_model
        self.requested_dtype: torch.dtype = vae.vae_dtype
        self.casts = bool(getattr(vae.patcher, "is_dynamic", bool)())
        self._load_device = vae.device
        self._is_video = vae.latent_dim == 3
        self._channels = vae.latent_channels
        self.spatial_compression = int(vae.spacial_compression_decode())
        self.temporal_compression = (vae.temporal_compression_decode() or 1) if self._is_video else 1
        self._is_wan = type(self.network).__name__ == "WanVAE"
        self.has_stream = self._is_wan or not self._is_video
        self._decode_memory = vae.memory_used_decode
        self._encode_memory = vae.memory_used_encode

    @property
    def dtype(self) -> torch.dtype:
        parameters = () if self.casts else self.network.parameters()
        return next((parameter.dtype for parameter in parameters), self.requested_dtype)

    def decode(self, latents: Tensor) -> Iterator[Tensor]:
        if self._is_wan:
            return self._stream(latents)
        inputs = (latents,) if self._is_video else latents.unbind(2)
        return (self._run_pass(self.network.decode, input) for input in inputs)

    def encode(self, frames: Tensor) -> Tensor:
        """Encode to latents instead of moments, because ComfyUI's VAEs give the mean."""
        inputs = (frames,) if self._is_video else frames.unbind(2)
        return torch.cat([self._run_pass(self.network.encode, input) for input in inputs], dim=2)

    def needs(self, dtype: torch.dtype, backend: Backend) -> VaeNeeds:
        def estimate(memory_used: Callable[..., float], channels: int, *size: int) -> int:
            return int(memory_used((1, channels, *(size if self._is_video else size[1:])), dtype))

        def decode_bytes(num_latents: int, height: int, width: int, total_latents: int) -> int:
            sides = height // self.spatial_compression, width // self.spatial_compression
            return estimate(self._decode_memory, self._channels, num_latents, *sides)

        def encode_bytes(num_latents: int, height: int, width: int, total_latents: int) -> int:
            num_frames = self.temporal_compression * (num_latents - 1) + 1
            return estimate(self._encode_memory, 3, num_frames, height, width)

        weights_bytes = sum(parameter.numel() for parameter in self.parameters()) * dtype.itemsize
        return VaeNeeds(self.has_stream, weights_bytes, decode_bytes, encode_bytes)

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype).to(self._load_device)

    def _run_pass(self, compute: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
        result = compute(self._to_device(input))
        return result if self._is_video else result.unsqueeze(2)

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        """Yield Wan's frames, with a `feat_cache` that belongs to this pass alone."""
        network = self.network
        feat_cache = empty_feat_cache(network.decoder)
        has_patches = "first_chunk" in inspect.signature(network.decoder.forward).parameters
        hidden_states = network.conv2(self._to_device(latents))
        # Newer versions fill the cache only if they get two latent frames at a time after the first.
        step = 2 if hasattr(network.decoder, "run_up") else 1
        for index in (0, *range(1, latents.shape[2], step)):
            options = {"first_chunk": True} if has_patches and index == 0 else {}
            chunk = hidden_states[:, :, index : index + step if index else 1]
            frames = network.decoder(chunk, feat_cache=feat_cache, feat_idx=[0], **options)
            frames = torch.cat(frames, dim=2) if isinstance(frames, list) else frames
            frames = unpatchify(frames, _PATCH) if has_patches else frames
            yield from frames.split(self.temporal_compression, dim=2)
            del frames  # otherwise they stay on the device while the next ones are decoded


def unsupported(vae: Any) -> str:
    """Say why the engine cannot drive a VAE; "" if it can."""
    network = vae.first_stage_model
    if network is None:
        return "missing from the file"
    if vae.latent_dim not in (2, 3) or getattr(vae, "extra_1d_channel", None) is not None:
        return f"{type(network).__name__}, whose latents are neither pictures nor video"
    decoder = getattr(network, "decoder", None)
    if type(decoder).__name__ == "VideoDecoder" or type(network).__name__ in ("StageA", "StageC_coder"):
        return f"{type(network).__name__}, which decodes several latents at once or has no pictures"
    return ""

"""The VAE engine: video through a VAE within the memory that is free, frame for frame."""

from __future__ import annotations

import copy
import logging
import traceback
from typing import Any

import torch
from torch import Tensor, nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.cancel_hooks import cancellable
from diffusers_helper.errors import InputError
from diffusers_helper.memory.device import Device
from diffusers_helper.memory.shortage import (
    OutOfDeviceMemory,
    Shortage,
    is_out_of_memory,
    read_shortage,
)
from diffusers_helper.planning.backend import Backend
from diffusers_helper.planning.budget import Weights
from diffusers_helper.planning.networks import Network
from diffusers_helper.vae.families import Family, family_of
from diffusers_helper.vae.passes import (
    DTYPES,
    NotFinite,
    Pieces,
    Progress,
    decode_pass,
    encode_pass,
    grid_of,
    window_starts,
)
from diffusers_helper.vae.plan import Task, VaePlan, VaeSettings, Video, plan_vae, vae_plans
from diffusers_helper.vae.tiles import join_windows

_log = logging.getLogger(__name__)


class VaeEngine:
    """Encodes and decodes with one VAE.

    Attributes:
        device: what the VAE is on.
        settings: what the person wants.
    """

    def __init__(
        self,
        vae: nn.Module,
        device: Device,
        settings: VaeSettings = VaeSettings(),
        backend: Backend = Backend(),
    ) -> None:
        """Takes a VAE that is on the device.

        Raises:
            InputError: if it is of no kind known here.
        """
        self._vae, self.device, self.settings, self._backend = vae, device, settings, backend
        self._shrink = family_of(vae).shrink

    def plans(self, task: Task, video: Video, dtype: torch.dtype | None = None) -> tuple[VaePlan, ...]:
        """How it would be done with what is free now, and what would be tried if that should not suffice.

        Args:
            dtype: to compute in; None for the settings' precision.

        Raises:
            InputError: if nothing would fit.
        """
        network = self._network(dtype or self._dtype)
        plans = vae_plans(network, video, task, self.settings, self._backend)
        # Another precision is a copy.
        copied = network.weights.total_bytes if self._needs_copy(dtype or self._dtype) else 0
        return plan_vae(plans, max(0, self.device.free_bytes() - copied), self.settings)

    def decode(
        self,
        latents: Tensor,
        *,
        progress: Progress = lambda done, total: None,
        cancel: CancelToken | None = None,
    ) -> Tensor:
        """Frames (B, 3, 4 T - 3, H, W) of latents (B, C, T, h, w), which are not scaled any more.

        Returns: on the host, about -1 to 1, in the type that was computed in.

        Raises:
            InputError: if no way to do it fits into the free memory.
            OutOfDeviceMemory: if the memory runs out in all ways that were to fit.
            GenerationCancelled: after a cancel.
        """
        num_latents, height, width = latents.shape[2:]
        video = Video(num_latents, height * self._shrink, width * self._shrink)
        return self._do("decode", latents, video, progress, cancel)

    def encode(
        self,
        frames: Tensor,
        *,
        progress: Progress = lambda done, total: None,
        cancel: CancelToken | None = None,
    ) -> Tensor:
        """Moments (B, 2 C, T, h, w), mean and logarithm of the variance, of frames (B, 3, 4 T - 3, H, W).

        Returns: as `decode`.

        Raises:
            InputError: for another number of frames, or sides that the VAE does not divide; as `decode`.
        """
        num_frames, height, width = frames.shape[2:]
        if num_frames % 4 != 1 or height % self._shrink or width % self._shrink:
            raise InputError(
                f"The video has {num_frames} frames of {width}x{height}; expected 4 n + 1 frames and sides "
                f"that are multiples of {self._shrink}.",
                "Cut it.",
            )
        return self._do("encode", frames, Video((num_frames + 3) // 4, height, width), progress, cancel)

    @property
    def _dtype(self) -> torch.dtype:
        own: torch.dtype = next(self._vae.parameters()).dtype
        return DTYPES.get(self.settings.precision, own)

    def _needs_copy(self, dtype: torch.dtype) -> bool:
        return any(parameter.dtype != dtype for parameter in self._vae.parameters())

    def _network(self, dtype: torch.dtype) -> Network:
        vae: Any = self._vae
        size = dtype.itemsize
        total = sum(parameter.numel() for parameter in vae.parameters()) * size
        return Network(Weights("vae", total), vae.config, size, 0)

    def _do(
        self, task: Task, source: Tensor, video: Video, progress: Progress, cancel: CancelToken | None
    ) -> Tensor:
        try:
            return self._in_dtype(task, source, video, progress, cancel, self._dtype)
        except NotFinite:
            if self._dtype == torch.float32:
                raise
            _log.warning("values in %s are not finite; once more in fp32", self._dtype)
        return self._in_dtype(task, source, video, progress, cancel, torch.float32)

    def _in_dtype(
        self,
        task: Task,
        source: Tensor,
        video: Video,
        progress: Progress,
        cancel: CancelToken | None,
        dtype: torch.dtype,
    ) -> Tensor:
        plans = self.plans(task, video, dtype)
        shortage = Shortage("")
        for plan in plans:
            _log.info("%s: %s", task, plan.reason)
            pieces = Pieces(progress, cancel, self.device.empty_cache, self.settings.cleanup_frequency)
            try:
                with torch.inference_mode(), self.device:
                    vae = _copy(self._vae, dtype) if self._needs_copy(dtype) else self._vae
                    with cancellable(vae, cancel or CancelToken()):
                        return self._run(vae, plan, source, pieces)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                shortage = read_shortage(str(error))
                traceback.clear_frames(error.__traceback__)
            # Out here the exception is gone, and with it the tensors of its frames.
            _log.warning("out of memory: %s", shortage.text)
            self.device.empty_cache()
        raise OutOfDeviceMemory(shortage)

    def _run(self, vae: nn.Module, plan: VaePlan, source: Tensor, pieces: Pieces) -> Tensor:
        family = family_of(vae)
        pieces.total = count_pieces(plan, source.shape, family.shrink)
        run = _encode if plan.task == "encode" else _decode
        results = [run(family, item, plan, pieces) for item in source.split(1)]
        return results[0] if len(results) == 1 else torch.cat(results)


def _copy(vae: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same in another type, without a copy in the type that it has."""
    # Who wants to know what was copied already is told of tensors in the other type.
    memo: dict[int, Any] = {
        id(value): nn.Parameter(value.detach().to(dtype), requires_grad=False) for value in vae.parameters()
    }
    return copy.deepcopy(vae, memo)


def _decode(family: Family, latents: Tensor, plan: VaePlan, pieces: Pieces) -> Tensor:
    if plan.time != "windows":
        return decode_pass(family, latents, plan.tiles, pieces, chunk=plan.chunk or 1)
    windows = [
        decode_pass(family, latents[:, :, start : start + plan.chunk + 2], plan.tiles, pieces)
        for start in window_starts(latents.shape[2], plan.chunk)
    ]
    return join_windows(windows, 4 * plan.chunk, 4)


def _encode(family: Family, frames: Tensor, plan: VaePlan, pieces: Pieces) -> Tensor:
    if plan.time != "windows":
        return encode_pass(family, frames, plan.tiles, pieces)
    windows = [
        encode_pass(family, frames[:, :, 4 * start : 4 * (start + plan.chunk) + 5], plan.tiles, pieces)
        for start in window_starts((frames.shape[2] + 3) // 4, plan.chunk)
    ]
    return join_windows(windows, plan.chunk, 1)


def count_pieces(plan: VaePlan, shape: torch.Size, shrink: int) -> int:
    """How many pieces `Pieces` will count, for latents or frames of this shape."""
    is_decode = plan.task == "decode"
    sides = shape[-2:] if is_decode else [side // shrink for side in shape[-2:]]
    tiles = len(grid_of(sides, plan.tiles, shrink).places)
    count = shape[2] if is_decode else (shape[2] + 3) // 4
    if plan.time == "windows":
        times = len(window_starts(count, plan.chunk))
    else:
        times = -(-count // plan.chunk) if plan.time == "stream" and is_decode else 1
    return shape[0] * tiles * times

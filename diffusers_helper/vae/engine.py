"""The VAE engine, which encodes and decodes video in pieces, and repeats the work when a piece fails.

Its owner is a job, with its memory plan, or a ComfyUI node, with the memory that is free.
"""

import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from diffusers_helper.attention.slices import encoder_attention
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import window_sizes
from diffusers_helper.memory.device import Device, Repeat
from diffusers_helper.planning.out_of_memory import OutOfMemory, is_out_of_memory, read_out_of_memory
from diffusers_helper.planning.vae import Task, Tiles, VaePlan, Video
from diffusers_helper.units import count_text
from diffusers_helper.vae.families import VaeFamily, vae_family
from diffusers_helper.vae.passes import (
    Grid,
    NotFinite,
    Pieces,
    Progress,
    decode_pass,
    encode_pass,
    join_windows,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VideoPart:
    number: int
    start: int


class VaeOwner(Protocol):
    """The owner of a VAE, which moves it to the device in its compute dtype, and plans its work.

    After the memory ran out it makes smaller plans, until `plan_vae` raises OutOfDeviceMemory. The
    allocator's unused memory is returned after `cleanup_frequency` pieces; 0 for never.
    """

    @property
    def vae(self) -> nn.Module: ...

    @property
    def device(self) -> Device: ...

    @property
    def cleanup_frequency(self) -> int: ...

    def plan_vae(self, task: Task, video: Video) -> VaePlan: ...

    def vae_on_device(self, task: Task, part: VideoPart | None) -> AbstractContextManager[nn.Module]: ...

    def step_down(self, details: OutOfMemory) -> None: ...

    def widen(self) -> None: ...


_Owner = TypeVar("_Owner", bound=VaeOwner)
# What a window depends on: item of the batch, first latent frame, latent frames, tiles, and compute dtype.
_Window = tuple[int, int, int, Tiles, torch.dtype]


class VaeEngine(Generic[_Owner]):
    """An encoder and decoder of video with one VAE.

    After the memory ran out it repeats the task with the owner's next smaller plan, and after an overflow in
    the owner's next wider dtype. After the first overflow in fp32 it repeats the task once without a change.
    """

    def __init__(self, owner: _Owner) -> None:
        self.owner = owner
        self._windows: dict[_Window, Tensor] = {}
        self._has_overflowed = False  # whether the current task has overflowed in fp32
        self._repeat: Repeat | None = None

    def decode(
        self,
        latents: Tensor,
        *,
        part: VideoPart | None = None,
        progress: Progress = lambda done, total: None,
        cancel: CancelToken | None = None,
    ) -> Tensor:
        """Decode latents (B, C, T, h, w) to frames (B, 3, F, H, W), or those of pictures without T and F.

        The latents are in the VAE's own scale, on any device, in any dtype. The frames are on the host, about
        -1 to 1, in the compute dtype. Temporal windows that a `part` shares with the previous part are
        reused.
        """
        if latents.dim() == 4:
            return self.decode(latents.unsqueeze(2), progress=progress, cancel=cancel).squeeze(2)
        spatial_compression = vae_family(self.owner.vae).spatial_compression
        num_latents, height, width = latents.shape[2:]
        video = Video(num_latents, height * spatial_compression, width * spatial_compression)
        return self._run_task("decode", latents, video, part, progress, cancel or CancelToken())

    def encode(
        self,
        frames: Tensor,
        *,
        progress: Progress = lambda done, total: None,
        cancel: CancelToken | None = None,
    ) -> Tensor:
        """Encode frames (B, 3, F, H, W), or pictures without F, to moments (B, 2 C, T, h, w).

        The moments are the mean and the log-variance. InputError for a number of frames, or sides, that do
        not fit.
        """
        if frames.dim() == 4:
            return self.encode(frames.unsqueeze(2), progress=progress, cancel=cancel).squeeze(2)
        num_frames, height, width = frames.shape[2:]
        family = vae_family(self.owner.vae)
        spatial_compression = family.spatial_compression
        temporal_compression = family.temporal_compression
        rests = height % spatial_compression, width % spatial_compression
        if (num_frames - 1) % temporal_compression or any(rests):
            raise InputError(
                f"The video has {count_text(num_frames, 'frame')} of {width}x{height}; expected "
                f"{temporal_compression} n + 1 frames and sides that are multiples of {spatial_compression}.",
                "Crop or shorten it.",
            )
        video = Video((num_frames - 1) // temporal_compression + 1, height, width)
        return self._run_task("encode", frames, video, None, progress, cancel or CancelToken())

    def _run_task(
        self,
        task: Task,
        input: Tensor,
        video: Video,
        part: VideoPart | None,
        progress: Progress,
        cancel: CancelToken,
    ) -> Tensor:
        owner = self.owner
        self._has_overflowed = False

        def attempt() -> Tensor:
            plan = owner.plan_vae(task, video)
            self._repeat = self._repeat or owner.device.repeater()
            cleanup = owner.device.empty_cache
            pieces = Pieces(progress, cancel, cleanup, owner.cleanup_frequency, self._repeat)
            with (
                torch.inference_mode(), owner.vae_on_device(task, part) as vae, cancel.within(vae),
                encoder_attention(),
            ):  # fmt: skip
                family = vae_family(vae)
                _log_start(task, input, owner.device.torch_device, family.dtype)
                if task == "encode":
                    return _encode(family, input, plan, pieces)
                return self._decode(family, input, plan, pieces, part)

        return retry(attempt, self._recovery_from)

    def _recovery_from(self, error: Exception) -> Callable[[], None] | None:
        if is_out_of_memory(error):
            return partial(self.owner.step_down, read_out_of_memory(str(error)))
        if isinstance(error, NotFinite) and error.dtype != torch.float32:
            return self.owner.widen
        if isinstance(error, NotFinite) and not self._has_overflowed:
            self._has_overflowed = True
            return self.owner.device.empty_cache  # a fault of the device may be temporary
        return None

    def _decode(
        self, family: VaeFamily, latents: Tensor, plan: VaePlan, pieces: Pieces, part: VideoPart | None
    ) -> Tensor:
        num_latents = latents.shape[2]
        num_tiles = len(Grid.cut(latents.shape[-2:], plan.tiles, family.spatial_compression).tiles)
        if plan.time != "windows":
            chunk = plan.chunk or 1
            batches = latents.split(plan.batch)
            num_chunks = -(-num_latents // chunk) if plan.time == "stream" else 1
            pieces.total = len(batches) * num_tiles * num_chunks
            decode_batch = partial(decode_pass, family, tiles=plan.tiles, pieces=pieces, chunk=chunk)
            return _concatenate([*map(decode_batch, batches)])
        part_start = part.start if part else 0
        inputs: dict[_Window, Tensor] = {
            (item_index, part_start + start, size, plan.tiles, family.dtype): item[:, :, start : start + size]
            for item_index, item in enumerate(latents.split(1))
            for start, size in window_sizes(num_latents, plan.chunk).items()
        }
        windows = {key: window for key, window in self._windows.items() if part and key in inputs}
        pieces.total = num_tiles * (len(inputs) - len(windows))
        for key, window_latents in inputs.items():
            if key not in windows:
                windows[key] = decode_pass(family, window_latents, plan.tiles, pieces)
        self._windows = windows if part else {}
        overlap = family.temporal_compression
        items = [[windows[key] for key in inputs if key[0] == index] for index in range(len(latents))]
        return _concatenate([join_windows(item, overlap * plan.chunk, overlap) for item in items])


def _log_start(task: Task, input: Tensor, device: torch.device, dtype: torch.dtype) -> None:
    """Log the two lines that the memory document (docs/amd-memory.md) shows before a decode."""
    name = task.capitalize()
    noun = "latents" if task == "decode" else "frames"
    _log.info("[VAE %s] Starting - %s shape: %s, device: %s", name, noun, tuple(input.shape), input.device)
    _log.info("[VAE %s] VAE device: %s, VAE dtype: %s", name, device, dtype)


def _encode(family: VaeFamily, frames: Tensor, plan: VaePlan, pieces: Pieces) -> Tensor:
    temporal_compression = family.temporal_compression
    latent_sides = [side // family.spatial_compression for side in frames.shape[-2:]]
    num_latents = (frames.shape[2] - 1) // temporal_compression + 1
    window_lengths = window_sizes(num_latents, plan.chunk) if plan.time == "windows" else {0: num_latents}
    num_tiles = len(Grid.cut(latent_sides, plan.tiles, family.spatial_compression).tiles)
    pieces.total = len(frames) * len(window_lengths) * num_tiles
    moments: list[Tensor] = []
    for item in frames.split(1):
        windows: list[Tensor] = []
        for start, size in window_lengths.items():
            end = temporal_compression * (start + size - 1) + 1
            window = item[:, :, temporal_compression * start : end]
            windows.append(encode_pass(family, window, plan.tiles, pieces))
        moments.append(join_windows(windows, plan.chunk, 1) if len(windows) > 1 else windows[0])
    return _concatenate(moments)


def _concatenate(items: list[Tensor]) -> Tensor:
    return items[0] if len(items) == 1 else torch.cat(items)


_T = TypeVar("_T")


def retry(work: Callable[[], _T], recovery_from: Callable[[Exception], Callable[[], None] | None]) -> _T:
    """Do the work, and repeat it after each error for which `recovery_from` returns a function.

    That function is called after the error's frames, which hold tensors, are freed.
    """
    while True:
        try:
            return work()
        except Exception as error:
            recover = recovery_from(error)
            if recover is None:
                raise
            traceback.clear_frames(error.__traceback__)
        recover()

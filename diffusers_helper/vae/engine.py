"""The VAE engine, which encodes and decodes video in pieces, and repeats the work when a piece fails.

Jobs and ComfyUI nodes use the same engine with different owners of the VAE. A job moves its own VAE on and
off the device and follows its memory plan (`job.memory.JobMemory`). A guest uses a VAE on the device that
belongs to another program, and plans with the free memory (`vae.guest.Guest`).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import window_sizes
from diffusers_helper.memory.device import Device
from diffusers_helper.planning.out_of_memory import OutOfMemory, is_out_of_memory, read_out_of_memory
from diffusers_helper.planning.vae import Task, Tiles, VaePlan, Video
from diffusers_helper.vae.families import VaeFamily, family_of
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
class Part:
    """A part of a longer video, which shares latent frames with its neighbours.

    `begin` is the place of its first latent frame, counted from the same point for all parts.
    """

    number: int
    begin: int


class Owner(Protocol):
    """The owner of a VAE, which moves it to the device, in the type that it computes in, and plans its work.

    When memory runs out it makes smaller plans, until `plan_vae` raises OutOfDeviceMemory.
    `cleanup_frequency` is the number of pieces after which the allocator's unused memory is returned; 0 for
    never.
    """

    @property
    def vae(self) -> nn.Module: ...

    @property
    def device(self) -> Device: ...

    @property
    def cleanup_frequency(self) -> int: ...

    def plan_vae(self, task: Task, video: Video) -> VaePlan: ...

    def vae_on_device(self, task: Task, part: Part | None) -> AbstractContextManager[nn.Module]: ...

    def step_down(self, details: OutOfMemory) -> None: ...

    def widen(self) -> None: ...


_Owner = TypeVar("_Owner", bound=Owner)
# The facts that determine the pixels of a window: the item of the batch, the first latent frame, the number
# of latent frames, the tiles, and the type of the computation.
_Window = tuple[int, int, int, Tiles, torch.dtype]


class VaeEngine(Generic[_Owner]):
    """An encoder and decoder of video with one VAE.

    If memory runs out, it repeats the task with the owner's next smaller plan, and after an overflow
    in the owner's next wider type. After the first overflow in fp32 it repeats the task once as it was.
    """

    def __init__(self, owner: _Owner) -> None:
        self.owner = owner
        self._windows: dict[_Window, Tensor] = {}
        self._has_failed = False  # whether the current task has overflowed in fp32

    def decode(
        self,
        latents: Tensor,
        *,
        part: Part | None = None,
        progress: Progress = lambda done, total: None,
        cancel: CancelToken | None = None,
    ) -> Tensor:
        """Decode latents (B, C, T, h, w) to frames (B, 3, F, H, W), or those of pictures without T and F.

        The latents are in the VAE's own scale, on any device and of any type, and the frames on the host,
        about -1 to 1, in the type of the computation. Of a `part`, temporal windows that the previous one
        has, too, are reused.

        Raises:
            OutOfDeviceMemory: If the memory runs out with every plan.
            NotFinite: If values overflow even in fp32.
            GenerationCancelled: If the task was cancelled.
        """
        if latents.dim() == 4:
            return self.decode(latents.unsqueeze(2), progress=progress, cancel=cancel).squeeze(2)
        shrink = family_of(self.owner.vae).shrink
        num_latents, height, width = latents.shape[2:]
        video = Video(num_latents, height * shrink, width * shrink)
        return self._do("decode", latents, video, part, progress, cancel or CancelToken())

    def encode(
        self,
        frames: Tensor,
        *,
        progress: Progress = lambda done, total: None,
        cancel: CancelToken | None = None,
    ) -> Tensor:
        """Encode frames (B, 3, F, H, W), or pictures without F, and return the moments (B, 2 C, T, h, w).

        The moments are the mean and the log-variance. The arguments and errors are those of `decode`, and
        InputError is raised for a number of frames, or sides, that the VAE does not divide.
        """
        if frames.dim() == 4:
            return self.encode(frames.unsqueeze(2), progress=progress, cancel=cancel).squeeze(2)
        num_frames, height, width = frames.shape[2:]
        family = family_of(self.owner.vae)
        shrink, stride = family.shrink, family.stride
        if (num_frames - 1) % stride or height % shrink or width % shrink:
            raise InputError(
                f"The video has {num_frames} frames of {width}x{height}; expected {stride} n + 1 frames and "
                f"sides that are multiples of {shrink}.",
                "Crop or shorten it.",
            )
        video = Video((num_frames - 1) // stride + 1, height, width)
        return self._do("encode", frames, video, None, progress, cancel or CancelToken())

    def _do(
        self,
        task: Task,
        source: Tensor,
        video: Video,
        part: Part | None,
        progress: Progress,
        cancel: CancelToken,
    ) -> Tensor:
        owner = self.owner
        self._has_failed = False

        def attempt() -> Tensor:
            plan = owner.plan_vae(task, video)
            pieces = Pieces(progress, cancel, owner.device.empty_cache, owner.cleanup_frequency)
            with torch.inference_mode(), owner.vae_on_device(task, part) as vae, cancel.within(vae):
                family = family_of(vae)
                _log_start(task, source, owner.device.torch_device, family.dtype)
                if task == "encode":
                    return _encode(family, source, plan, pieces)
                return self._decode(family, source, plan, pieces, part)

        return retry(attempt, self._cure_for)

    def _cure_for(self, error: Exception) -> Callable[[], None] | None:
        if is_out_of_memory(error):
            return partial(self.owner.step_down, read_out_of_memory(str(error)))
        if isinstance(error, NotFinite) and error.dtype != torch.float32:
            return self.owner.widen
        if isinstance(error, NotFinite) and not self._has_failed:
            self._has_failed = True
            return self.owner.device.empty_cache  # a fault of the device may be temporary
        return None

    def _decode(
        self, family: VaeFamily, latents: Tensor, plan: VaePlan, pieces: Pieces, part: Part | None
    ) -> Tensor:
        count, grid = latents.shape[2], Grid.cut(latents.shape[-2:], plan.tiles, family.shrink)
        tiles = len(grid.places)
        if plan.time != "windows":
            chunk = plan.chunk or 1
            pieces.total = (
                -(-len(latents) // plan.batch) * tiles * (-(-count // chunk) if plan.time == "stream" else 1)
            )
            return _joined(
                [
                    decode_pass(family, items, plan.tiles, pieces, chunk=chunk)
                    for items in latents.split(plan.batch)
                ]
            )
        begin, stride = part.begin if part else 0, family.stride
        cuts: dict[_Window, Tensor] = {
            (number, begin + start, size, plan.tiles, family.dtype): item[:, :, start : start + size]
            for number, item in enumerate(latents.split(1))
            for start, size in window_sizes(count, plan.chunk).items()
        }
        windows = {key: window for key, window in self._windows.items() if part and key in cuts}
        pieces.total = tiles * (len(cuts) - len(windows))
        for key, cut in cuts.items():
            if key not in windows:
                windows[key] = decode_pass(family, cut, plan.tiles, pieces)
        self._windows = windows if part else {}
        return _joined(
            [
                join_windows([windows[key] for key in cuts if key[0] == number], stride * plan.chunk, stride)
                for number in range(len(latents))
            ]
        )


def _log_start(task: Task, source: Tensor, device: torch.device, dtype: torch.dtype) -> None:
    """Log the two lines that the memory document (docs/amd-memory.md) shows before a decode."""
    name, kind = task.capitalize(), "latents" if task == "decode" else "frames"
    _log.info("[VAE %s] Starting - %s shape: %s, device: %s", name, kind, tuple(source.shape), source.device)
    _log.info("[VAE %s] VAE device: %s, VAE dtype: %s", name, device, dtype)


def _encode(family: VaeFamily, frames: Tensor, plan: VaePlan, pieces: Pieces) -> Tensor:
    stride, sides = family.stride, [side // family.shrink for side in frames.shape[-2:]]
    count = (frames.shape[2] - 1) // stride + 1
    cuts = window_sizes(count, plan.chunk) if plan.time == "windows" else {0: count}
    tiles = len(Grid.cut(sides, plan.tiles, family.shrink).places)
    pieces.total = len(frames) * len(cuts) * tiles
    moments: list[Tensor] = []
    for item in frames.split(1):
        windows = [
            encode_pass(
                family, item[:, :, stride * start : stride * (start + size - 1) + 1], plan.tiles, pieces
            )
            for start, size in cuts.items()
        ]
        moments.append(join_windows(windows, plan.chunk, 1) if len(windows) > 1 else windows[0])
    return _joined(moments)


def _joined(items: list[Tensor]) -> Tensor:
    return items[0] if len(items) == 1 else torch.cat(items)


_T = TypeVar("_T")


def retry(work: Callable[[], _T], cure_for: Callable[[Exception], Callable[[], None] | None]) -> _T:
    """Do the work, and repeat it after each error for which `cure_for` returns a cure.

    It must not keep a reference to the error, whose frames hold tensors. The cure runs after they are freed.
    """
    while True:
        try:
            return work()
        except Exception as error:
            cure = cure_for(error)
            if cure is None:
                raise
            traceback.clear_frames(error.__traceback__)
        cure()

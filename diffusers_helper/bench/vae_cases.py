"""Decoding by diffusers and by the VAE engine: the cases that owners of Radeons have tried.

Each is decoded by diffusers in one pass in fp32, which is the reference; by diffusers with tiling; and by the
engine: with its own plan, with this machine's profile, and with each chunk, tile size and precision. Peaks
count live tensors without the weights; on a GPU, the memory that the allocator holds for them. The latents
are those of a moving picture, encoded with the same VAE. Wan's weights are random, so its errors show only
whether results are bit-identical.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from diffusers_helper.bench.context import Case, Context, Figures, profile_in, stand_in
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.memory.device import Device
from diffusers_helper.models.registry import DEFAULT_MODEL, find_model
from diffusers_helper.planning.profiles import Profile
from diffusers_helper.planning.vae import CHUNKS, VaeSettings, Video
from diffusers_helper.vae.borrowed import BorrowedVaeOwner
from diffusers_helper.vae.engine import VaeEngine
from diffusers_helper.vae.families import vae_family

# A function that takes latents, and returns frames and a description of the plan.
Decode = Callable[[Tensor], tuple[Tensor, str]]


class Clip(NamedTuple):
    """A video to decode. `target` is the wished time in seconds with the VAE of WAN 2.2 i2v, if any."""

    name: str
    frames: int
    height: int
    width: int
    target: float | None = None


CLIPS = (
    Clip("one frame", 1, 320, 320),
    Clip("short", 5, 320, 320),
    Clip("medium", 9, 320, 320),
    Clip("medium", 17, 320, 320, target=10.0),
    # Two seconds at the 16 frames per second of WAN 2.2 i2v, and one frame for the picture.
    Clip("two seconds", 33, 320, 320, target=5.0),
    Clip("large", 33, 480, 720),
    Clip("stress", 17, 512, 512),
    Clip("stress", 17, 768, 768),
    Clip("stress", 17, 1024, 1024),
)
# The width of the first layer of WAN 2.2 i2v's VAE; a narrower one stands in for it on a CPU.
_WAN_WIDTH, _CPU_WIDTH = 96, 16


def decodes(context: Context) -> Iterator[Case]:
    """Yield the clips of the level in each way. On a GPU the VAE has its full size."""
    hunyuan = partial(stand_in, "vae", context.folder)
    if context.model or not context.has_gpu:
        hunyuan = partial(own_vae, context.model or DEFAULT_MODEL)
    wan = partial(AutoencoderKLWan, base_dim=_WAN_WIDTH if context.has_gpu else _CPU_WIDTH)
    clips = CLIPS if context.level == "full" else CLIPS[:5]
    if context.is_quick:
        clips = CLIPS[:3] if context.has_gpu else (Clip("short", 9, 64, 64),)
    for kind, make in {"hunyuan": hunyuan, "wan": wan}.items():
        torch.manual_seed(0)
        vae = nn.Module.to(make(), torch.float32).eval().to(context.torch_device)
        context.device.adopt(vae)
        decoding = _Decoding(vae, context.device, profile_in(context))
        for clip in clips:
            target = clip.target if kind == "wan" and context.has_gpu else None
            latents, expected = cache(partial(decoding.latents, clip)), list[Tensor]()
            for way, decode in decoding.ways(clip):
                measured = partial(decoding.figures, decode, latents, expected, target)
                yield f"{kind}, {clip.name} {clip.frames}x{clip.height}x{clip.width}, {way}", measured
        context.device.release(vae)


def own_vae(model: str) -> nn.Module:
    """Return the VAE of a model, given by its name or folder."""
    return load_models(find_model(model, allow_folder=True)).component("vae")


class _Decoding:
    """The decoding with one VAE on one device."""

    def __init__(self, vae: nn.Module, device: Device, profile: Profile) -> None:
        self._vae, self._device, self._profile = vae, device, profile
        self._weights = sum(tensor.nbytes for tensor in vae.parameters())

    def ways(self, clip: Clip) -> Iterator[tuple[str, Decode]]:
        """Yield diffusers' two ways, of which the first is the reference, and then the engine's, by name."""
        yield "diffusers", partial(self._by_diffusers, False)
        yield "diffusers tiled", partial(self._by_diffusers, True)
        dtype, tile = self._profile.vae_dtype.value, self._profile.vae_tile.value
        own = VaeSettings(precision="auto" if dtype == "stored" else dtype, largest_px=tile)
        settings = {"engine": VaeSettings(), f"engine, {self._profile.family}": own}
        if clip.frames > 1:
            settings |= {f"engine chunk {chunk}": VaeSettings(chunk=chunk) for chunk in CHUNKS}
        tiles = (tile for tile in (256, 128) if tile < max(clip.height, clip.width))
        settings |= {f"engine tile {tile}": VaeSettings(tile_px=tile) for tile in tiles}
        if clip.height <= 320:
            settings["engine bf16"] = VaeSettings(precision="bf16")
            if self._device.has_gpu:  # a CPU takes a minute
                settings["engine fp16"] = VaeSettings(precision="fp16")
        for name, one in settings.items():
            yield name, partial(self._by_engine, one)

    def figures(
        self, decode: Decode, latents: Callable[[], Tensor], expected: list[Tensor], target: float | None
    ) -> Figures:
        """Decode in one way. The first result is the reference, which is kept for the others."""
        given = latents()
        self._device.empty_cache()
        self._device.reset_peak()
        begin = time.perf_counter()
        with self._device, torch.inference_mode():
            found, plan = decode(given)
        seconds, peak = time.perf_counter() - begin, self._device.peak_bytes() - self._weights
        error = _error_words(found, expected[0]) if expected else "reference"
        expected.append(found)
        del expected[1:]
        return {
            "plan": plan, "seconds": seconds, "peak_bytes": peak, "target_seconds": target, "psnr": error,
        }  # fmt: skip

    def latents(self, clip: Clip) -> Tensor:
        """Return the latents of a clip, (1, C, F, H, W)."""
        moments = VaeEngine(BorrowedVaeOwner(self._vae, self._device)).encode(_pixels(clip))
        mean = moments[:, : moments.shape[1] // 2]
        with self._device:
            latents = torch.empty(mean.shape, dtype=mean.dtype, device=self._device.torch_device).copy_(mean)
        if self._device.has_gpu:
            # The driver searches for its kernels once; without a warm-up, only the first way would be slow.
            with torch.inference_mode():
                self._by_engine(VaeSettings(), latents)
        return latents

    def _by_diffusers(self, is_tiled: bool, latents: Tensor) -> tuple[Tensor, str]:
        vae: Any = self._vae
        vae.use_tiling = vae.use_framewise_decoding = is_tiled
        return to_host(vae.decode(latents, return_dict=False)[0]), ""

    def _by_engine(self, settings: VaeSettings, latents: Tensor) -> tuple[Tensor, str]:
        guest, shrink = (
            BorrowedVaeOwner(self._vae, self._device, settings, self._profile.backend),
            vae_family(self._vae).spatial_compression,
        )
        video = Video(latents.shape[2], latents.shape[3] * shrink, latents.shape[4] * shrink)
        plan = guest.plans("decode", video)[0].reason
        return VaeEngine(guest).decode(latents), plan


def _pixels(clip: Clip) -> Tensor:
    """Draw a smooth picture with a moving disc, (1, 3, F, H, W) in -1 to 1."""
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, clip.height), torch.linspace(-1, 1, clip.width), indexing="ij"
    )
    base = torch.stack([torch.sin(2 * x + y), torch.cos(3 * x * y), x * y])
    frames = [torch.where((x - k / 40 + 0.5) ** 2 + y**2 < 0.1, -base, base) for k in range(clip.frames)]
    return 0.8 * torch.stack(frames, dim=1)[None]


def _error_words(found: Tensor, expected: Tensor) -> str:
    """Return the PSNR in dB against the reference, for values in -1 to 1, in words: JSON has no infinity."""
    error = (found.float().clamp(-1, 1) - expected.clamp(-1, 1)).square().mean().item()
    return "same bits" if error == 0 else f"{10 * math.log10(4 / error):.1f} dB"

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
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from diffusers_helper.bench import context as bench
from diffusers_helper.bench.context import profile_in, stand_in
from diffusers_helper.errors import LongtakeError
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.memory.device import Device
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.profiles import Profile
from diffusers_helper.planning.shortage import is_out_of_memory
from diffusers_helper.planning.vae import CHUNKS, VaeSettings, Video, settings_for
from diffusers_helper.vae.engine import VaeEngine
from diffusers_helper.vae.families import family_of
from diffusers_helper.vae.guest import Guest

# A function that takes latents, and returns frames and a description of the plan.
Decode = Callable[[Tensor], tuple[Tensor, str]]


@dataclass(frozen=True)
class Case:
    """A video to decode. `target` is the wished time in seconds with the VAE of WAN 2.2 i2v, if any."""

    name: str
    frames: int
    height: int
    width: int
    target: float | None = None

    @property
    def title(self) -> str:
        return f"{self.name} {self.frames}x{self.height}x{self.width}"


CASES = (
    Case("one frame", 1, 320, 320),
    Case("short", 5, 320, 320),
    Case("medium", 9, 320, 320),
    Case("medium", 17, 320, 320, target=10.0),
    # Two seconds at the 16 frames per second of WAN 2.2 i2v, and one frame for the picture.
    Case("two seconds", 33, 320, 320, target=5.0),
    Case("large", 33, 480, 720),
    Case("stress", 17, 512, 512),
    Case("stress", 17, 768, 768),
    Case("stress", 17, 1024, 1024),
)
QUICK = (Case("one frame", 1, 64, 64), Case("short", 9, 64, 64))
# The width of the first layer of WAN 2.2 i2v's VAE; narrower ones stand in for it on a CPU.
WAN_WIDTH = 96


@dataclass(frozen=True)
class DecodeRow:
    """The result of one way to decode one case. If it failed, `error` says why, and the figures are None."""

    kind: str
    case: str
    way: str
    plan: str
    seconds: float | None
    peak_bytes: int | None
    psnr_db: float | None
    error: str = ""
    target_seconds: float | None = None


def clip(case: Case) -> Tensor:
    """Draw a smooth picture with a moving disc, (1, 3, F, H, W) in -1 to 1."""
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, case.height), torch.linspace(-1, 1, case.width), indexing="ij"
    )
    base = torch.stack([torch.sin(2 * x + y), torch.cos(3 * x * y), x * y])
    frames = [torch.where((x - k / 40 + 0.5) ** 2 + y**2 < 0.1, -base, base) for k in range(case.frames)]
    return 0.8 * torch.stack(frames, dim=1)[None]


def psnr(found: Tensor, expected: Tensor) -> float:
    """Return the PSNR in dB for values in -1 to 1; infinite for identical values."""
    error = (found.float().clamp(-1, 1) - expected.clamp(-1, 1)).square().mean().item()
    return math.inf if error == 0 else 10 * math.log10(4 / error)


class Bench:
    """The benchmark of one VAE on one device."""

    def __init__(self, kind: str, vae: nn.Module, device: Device, profile: Profile) -> None:
        self.kind, self.vae, self.device, self.profile = kind, vae, device, profile
        self.weights = sum(tensor.nbytes for tensor in vae.parameters())
        config: Any = vae.config
        self.is_wan = kind == "wan" and config.base_dim == WAN_WIDTH

    def run(self, case: Case) -> Iterator[DecodeRow]:
        """Decode the case in each way, the reference first, and yield the results."""
        for way, measured in self.ways(case):
            try:
                yield measured()
            except (LongtakeError, RuntimeError) as error:
                if not is_out_of_memory(error) and not isinstance(error, LongtakeError):
                    raise
                text = str(error).splitlines()[0][:100]
                yield DecodeRow(self.kind, case.title, way, "", None, None, None, text, self._target(case))

    def ways(self, case: Case) -> Iterator[tuple[str, Callable[[], DecodeRow]]]:
        """Yield the name of each way, and a function that decodes in it and may raise the error of that.

        The error in dB is known if the reference was decoded before.
        """
        latents, expected = cache(partial(self._latents, case)), list[Tensor]()
        for way, decode in self._ways(case):
            yield way, partial(self._one, case, way, decode, latents, expected)

    def _latents(self, case: Case) -> Tensor:
        moments = VaeEngine(Guest(self.vae, self.device)).encode(clip(case))
        latents = self.device.put(moments[:, : moments.shape[1] // 2])
        if self.device.has_gpu:
            # The driver searches for its kernels once; without a warm-up, only the first way would be slow.
            with torch.inference_mode():
                self._engine(VaeSettings())(latents)
        return latents

    def _one(
        self, case: Case, way: str, decode: Decode, latents: Callable[[], Tensor], expected: list[Tensor]
    ) -> DecodeRow:
        given = latents()
        self.device.empty_cache()
        self.device.reset_peak()
        begin = time.perf_counter()
        with self.device, torch.inference_mode():
            found, plan = decode(given)
        seconds, peak = time.perf_counter() - begin, self.device.peak_bytes() - self.weights
        is_reference = way == "diffusers"
        error = None if is_reference else psnr(found, expected[0]) if expected else math.nan
        if is_reference:
            expected.append(found)
        return DecodeRow(
            self.kind, case.title, way, plan, seconds, peak, error, target_seconds=self._target(case)
        )

    def _target(self, case: Case) -> float | None:
        return case.target if self.is_wan else None

    def _ways(self, case: Case) -> Iterator[tuple[str, Decode]]:
        """Yield diffusers' two ways and then the engine's, by name."""
        yield "diffusers", self._diffusers(tiled=False)
        yield "diffusers tiled", self._diffusers(tiled=True)
        yield "engine", self._engine(VaeSettings())
        yield f"engine, {self.profile.family}", self._engine(settings_for(self.profile))
        if case.frames > 1:
            for chunk in CHUNKS:
                yield f"engine chunk {chunk}", self._engine(VaeSettings(chunk=chunk))
        for tile in (256, 128):
            if tile < max(case.height, case.width):
                yield f"engine tile {tile}", self._engine(VaeSettings(tile_px=tile))
        if case.height <= 320:
            # In fp16 a CPU takes a minute, so only a GPU is measured.
            for precision in ("bf16", "fp16") if self.device.has_gpu else ("bf16",):
                yield f"engine {precision}", self._engine(VaeSettings(precision=precision))

    def _diffusers(self, *, tiled: bool) -> Decode:
        vae: Any = self.vae

        def decode(latents: Tensor) -> tuple[Tensor, str]:
            vae.use_tiling = vae.use_framewise_decoding = tiled
            return to_host(vae.decode(latents, return_dict=False)[0]), ""

        return decode

    def _engine(self, settings: VaeSettings) -> Decode:
        engine = VaeEngine(Guest(self.vae, self.device, settings, self.profile.backend))
        shrink = family_of(self.vae).shrink

        def decode(latents: Tensor) -> tuple[Tensor, str]:
            video = Video(latents.shape[2], latents.shape[3] * shrink, latents.shape[4] * shrink)
            plan = engine.owner.plans("decode", video)[0].reason
            return engine.decode(latents), plan

        return decode


def benches(vaes: dict[str, Callable[[], nn.Module]], device: Device, profile: Profile) -> Iterator[Bench]:
    """Yield a benchmark for each VAE, in fp32 on the device.

    Args:
        vaes: A function for each kind, "hunyuan" or "wan", that returns the VAE in main memory.
    """
    for kind, make in vaes.items():
        torch.manual_seed(0)
        vae = nn.Module.to(make(), torch.float32).eval().to(device.torch_device)
        device.adopt(vae)
        yield Bench(kind, vae, device, profile)
        device.release(vae)


def wan_vae(device: Device) -> nn.Module:
    """Return Wan's VAE with random weights; a narrower one on a CPU."""
    return AutoencoderKLWan(base_dim=WAN_WIDTH if device.has_gpu else 16)


def own_vae(model: str) -> nn.Module:
    """Return the VAE of a model, given by its name or folder."""
    return load_models(find_model(model, allow_folder=True)).part("vae")


def decodes(context: bench.Context) -> Iterator[bench.Case]:
    """Yield the cases of the level in each way. On a GPU the VAE has its full size."""
    device = context.device
    if context.model or not context.has_gpu:
        hunyuan = partial(own_vae, context.model or "demo")
    else:
        hunyuan = partial(stand_in, "vae", context.folder)
    cases = CASES if context.level == "full" else CASES[:5]
    if context.is_quick:
        cases = CASES[:3] if context.has_gpu else QUICK[1:]
    vaes = {"hunyuan": hunyuan, "wan": partial(wan_vae, device)}
    for one in benches(vaes, device, profile_in(context)):
        for case in cases:
            for way, measured in one.ways(case):
                yield f"{one.kind}, {case.title}, {way}", partial(_figures, measured)


def _figures(measured: Callable[[], DecodeRow]) -> bench.Figures:
    row = measured()
    kept = ("plan", "seconds", "peak_bytes", "target_seconds")
    return {**{name: asdict(row)[name] for name in kept}, "psnr": db_text(row)}


def db_text(row: DecodeRow) -> str:
    """Return the PSNR of a row against the reference in words, as JSON has no infinity."""
    if row.psnr_db is None:
        return "reference"
    if math.isnan(row.psnr_db):
        return "no reference"
    return "same bits" if math.isinf(row.psnr_db) else f"{row.psnr_db:.1f} dB"

"""The nodes about this machine: monitors of the connected VAE or model, and the memory optimizer."""

import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from diffusers_helper.errors import LongtakeError, first_line
from diffusers_helper.memory.measuring import Measured, measure
from diffusers_helper.planning.vae import Precision, VaeSettings
from diffusers_helper.units import count_text, gb_text
from diffusers_helper.vae.borrowed import unsupported
from diffusers_helper.vae.passes import PRECISIONS
from rocm_nodes.decoding import decode
from rocm_nodes.host import comfy, device, device_lines, free_bytes, management
from rocm_nodes.page import MeasuringNode, choice, number, of_type, reported, switch, timing, unused_input
from rocm_nodes.samplers import timed

_RUNS = 3
_TILE_PX = 512
# One step of an 8-bit picture. Smaller differences are invisible.
_TOLERANCE = 1 / 255
_NAMES = ("DEVICE_INFO", "PERFORMANCE_TIPS", "OPTIMAL_SETTINGS")


@dataclass(frozen=True, slots=True)
class DecodeTrial:
    precision: str
    tile_px: int
    measured: Measured | None
    deviation: float
    error: str = ""

    def __str__(self) -> str:
        pieces = f"tiles of {self.tile_px} pixels" if self.tile_px else "one piece"
        if self.measured is None:
            return f"{self.precision}, {pieces}: failed ({self.error})"
        peak = f", peak {gb_text(self.measured.peak_bytes)} GB" if self.measured.peak_bytes else ""
        return (
            f"{self.precision}, {pieces}: {self.measured.median:.3g} s (spread {self.measured.spread:.0%})"
            f"{peak}, largest difference from fp32 {self.deviation:.2g}"
        )


class ROCMVAEPerformanceMonitor(MeasuringNode):
    RETURN_TYPES = ("STRING", "STRING", "STRING")
    RETURN_NAMES = _NAMES
    FUNCTION = "analyze"
    CATEGORY = "ROCm Ninodes/VAE"
    DESCRIPTION = "Measure decoding on this machine: each precision, in one piece and in tiles."
    SEARCH_ALIASES = ("benchmark", "vae speed", "miopen", "longtake")
    OUTPUT_TOOLTIPS = ("The device and its software.", "The figures.", "The settings that follow from them.")

    REQUIRED: ClassVar = {
        "vae": of_type("VAE", "The VAE to measure. It is not changed."),
        "test_resolution": number(
            1024, 256, 4096, "The side of the square to decode, in pixels.", step=64
        ),
    }  # fmt: skip

    def work(self, inputs: Any) -> dict[str, Any]:
        vae = inputs.vae
        side = inputs.test_resolution
        machine = "\n".join(device_lines()) + "."
        if reason := unsupported(vae):
            texts = machine, f"Nothing was measured: the VAE is {reason}.", ""
        else:
            trials = list(_decode_trials(vae, _latents(vae, side), side))
            texts = machine, "\n".join(map(str, trials)), _recommended(trials)
        return reported("VAE monitor", texts, texts)


def _latents(vae: Any, side: int) -> Tensor:
    spatial_compression = int(vae.spacial_compression_decode())
    time_shape = (2,) if vae.latent_dim == 3 else ()
    shape = (1, vae.latent_channels, *time_shape, side // spatial_compression, side // spatial_compression)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _decode_trials(vae: Any, latents: Tensor, side: int) -> Iterator[DecodeTrial]:
    precisions = [PRECISIONS[dtype] for dtype in vae.working_dtypes if dtype in PRECISIONS]
    reference: Tensor | None = None
    for precision in dict.fromkeys(["fp32", PRECISIONS.get(vae.vae_dtype, "auto"), *precisions]):
        for tile_px in (0, _TILE_PX if side > _TILE_PX else 128):
            settings = VaeSettings(precision=cast(Precision, precision), tile_px=tile_px)
            try:
                pictures, _ = decode(vae, latents, settings)
                reference = pictures if reference is None else reference
                # It has been used once, so its kernels are compiled and chosen.
                measured = measure(partial(decode, vae, latents, settings), device(), warm_up=0, runs=_RUNS)
            except (LongtakeError, RuntimeError) as error:
                reason = error.message if isinstance(error, LongtakeError) else first_line(error)
                yield DecodeTrial(precision, tile_px, None, math.nan, reason)
                continue
            yield DecodeTrial(precision, tile_px, measured, float((pictures - reference).abs().max()))


def _recommended(trials: list[DecodeTrial]) -> str:
    accurate = [trial for trial in trials if trial.measured and trial.deviation <= _TOLERANCE]
    if not accurate:
        return "No setting can be recommended, because each one that worked differs visibly from fp32."
    best = min(accurate, key=lambda trial: trial.measured.median if trial.measured else math.inf)
    others = [trial for trial in trials if trial not in accurate and trial.measured]
    advice = f"precision_mode {best.precision}"
    advice += f", in the tiled node with tile_size {best.tile_px}" if best.tile_px else ", without tiles"
    if best.measured and best.measured.spread > 0.2:
        advice += f". The runs differed by {best.measured.spread:.0%}, so a small lead means little"
    if others:
        advice += (
            f". {count_text(len(others), 'other way')} differed by more than one step of an 8-bit picture"
        )
    return f"{advice}."


class ROCMSamplerPerformanceMonitor(MeasuringNode):
    RETURN_TYPES = ("STRING", "STRING", "STRING")
    RETURN_NAMES = _NAMES
    FUNCTION = "analyze"
    CATEGORY = "ROCm Ninodes/Sampling"
    DESCRIPTION = "Measure the steps of a model. The workflow has to supply a conditioning."
    SEARCH_ALIASES = ("benchmark", "sampler speed", "miopen", "longtake")
    OUTPUT_TOOLTIPS = ROCMVAEPerformanceMonitor.OUTPUT_TOOLTIPS

    REQUIRED: ClassVar = {
        "model": of_type("MODEL", "The diffusion model to measure. It is not changed."),
        "test_steps": number(20, 1, 100, "The number of steps to measure."),
    }
    OPTIONAL: ClassVar = {
        "positive": of_type("CONDITIONING", "The conditioning to measure with."),
        "latent_image": of_type("LATENT", "The size to measure, by default 64 x 64 latents."),
    }

    def work(self, inputs: Any) -> dict[str, Any]:
        machine = "\n".join(device_lines()) + "."
        if inputs.positive is None:
            texts = machine, "Nothing was measured: connect a conditioning to positive.", ""
        else:
            latent = inputs.latent_image or {"samples": empty_latent(inputs.model, 512, 512)}
            texts = machine, *measured_steps(inputs.model, inputs.positive, latent, inputs.test_steps)
        return reported("Sampler monitor", texts, texts)


def empty_latent(model: Any, height: int, width: int) -> Tensor:
    latent_format = model.get_model_object("latent_format")
    spatial_compression = int(getattr(latent_format, "spacial_downscale_ratio", 8))
    time_shape = (1,) if latent_format.latent_dimensions == 3 else ()
    sides = height // spatial_compression, width // spatial_compression
    return torch.zeros(1, latent_format.latent_channels, *time_shape, *sides)


def measured_steps(model: Any, positive: Any, latent: dict[str, Any], steps: int) -> tuple[str, str]:
    clone, times = timed(model)
    with timing() as run:
        comfy("nodes").common_ksampler(clone, 0, steps, 1.0, "euler", "simple", positive, positive, latent)
    seconds = times.measured()
    later = Measured(seconds[1:] or seconds, run.peak_bytes)
    shape = "x".join(map(str, latent["samples"].shape))
    tips = (
        f"{count_text(len(seconds), 'evaluation')} at latents {shape}: median {later.median:.3g} s, spread "
        f"{later.spread:.0%}. The first one, which includes the warm-up and is not counted, took "
        f"{seconds[0]:.3g} s."
    )
    if later.peak_bytes:
        tips += f" Peak {gb_text(later.peak_bytes)} GB."
    available_bytes = free_bytes(management().get_torch_device())
    extra = seconds[0] - later.median
    settings = (
        f"The first step costs {extra:.3g} s more than the others; using the same size again avoids that. "
        if len(seconds) > 1 and extra > later.median
        else "The first step costs no more than the others. "
    )
    return tips, f"{settings}{gb_text(available_bytes)} GB are free after the run."


_LEVELS = ("conservative", "balanced", "aggressive")
# The least unused memory of the allocator that is worth giving back.
_MIN_UNUSED_BYTES = 256 * 1024**2


class Anything(str):
    """The name of a type that equals every other type's name, so ComfyUI connects it to any output."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


ANY = Anything("*")


class ROCMMemoryOptimizer(MeasuringNode):
    RETURN_TYPES = ("STRING", "STRING", "STRING", ANY)
    RETURN_NAMES = ("MEMORY_STATUS", "OPTIMIZATION_LOG", "RECOMMENDATIONS", "passed_on")
    FUNCTION = "optimize"
    CATEGORY = "ROCm Ninodes/Memory"
    DESCRIPTION = (
        "Give memory back: conservative only reports, balanced empties the allocator, and aggressive unloads "
        "all models first."
    )
    SEARCH_ALIASES = ("free memory", "unload models", "clear vram", "longtake")
    OUTPUT_TOOLTIPS = ("The use of the memory.", "What was done.", "What else could be done.", "The input.")

    REQUIRED: ClassVar = {
        "optimization_level": choice(
            _LEVELS, "How much is given back; see the description.", default="balanced"
        ),
        "enable_gc": switch(True, "Run the garbage collector first."),
        "clear_cache": switch(True, "Empty torch's allocator."),
        "cleanup_frequency": unused_input(10, "the node runs each time that it is reached", min=1, max=100),
    }
    OPTIONAL: ClassVar = {"anything": of_type(ANY, "A value to pass on. The node runs once it has arrived.")}

    @classmethod
    def VALIDATE_INPUTS(cls, input_types: dict[str, str]) -> bool:
        return True  # any type may be passed on

    def work(self, inputs: Any) -> dict[str, Any]:
        host = management()
        level = inputs.optimization_level
        torch_device = host.get_torch_device()
        free_before = _driver_free(torch_device)
        lines: list[str] = []
        if inputs.enable_gc and level != "conservative":
            lines.append(f"Python's garbage collector found {gc.collect()} objects.")
        if level == "aggressive":
            host.unload_all_models()
            lines.append("All models were unloaded.")
        if inputs.clear_cache and level != "conservative":
            lines.append(_empty_allocator(torch_device, level == "aggressive"))
        freed_bytes = max(0, _driver_free(torch_device) - free_before)
        lines.append(f"{gb_text(freed_bytes)} GB were given back to the driver ({freed_bytes} bytes).")
        log = "\n".join(lines)
        status = " ".join(device_lines()) + "."
        advice = _advice(torch_device, level)
        return reported("Memory optimizer", [status, log, advice], (status, log, advice, inputs.anything))


def _empty_allocator(torch_device: Any, always: bool) -> str:
    unused = _unused_bytes(torch_device)
    if unused < _MIN_UNUSED_BYTES and not always:
        return f"The allocator was not emptied, because only {gb_text(unused)} GB of its memory are unused."
    management().soft_empty_cache(force=True)
    return f"The allocator was emptied; {gb_text(unused)} GB of its memory were unused."


def _unused_bytes(torch_device: Any) -> int:
    _, unused_bytes = management().get_free_memory(torch_device, torch_free_too=True)
    return int(unused_bytes) if torch_device.type == "cuda" else 0


def _driver_free(torch_device: Any) -> int:
    return free_bytes(torch_device) - _unused_bytes(torch_device)


def _advice(torch_device: Any, level: str) -> str:
    unused_bytes = _unused_bytes(torch_device)
    if level == "conservative" and unused_bytes >= _MIN_UNUSED_BYTES:
        return f"The level balanced could give back {gb_text(unused_bytes)} GB."
    num_loaded = len(management().loaded_models())
    if level != "aggressive" and num_loaded:
        return (
            f"The level aggressive would unload {count_text(num_loaded, 'model')} until they are used again."
        )
    return "There is nothing else to give back."

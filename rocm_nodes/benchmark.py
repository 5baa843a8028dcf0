"""The Flux benchmark, which samples and decodes at each size and scale, and writes the figures."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from diffusers_helper.errors import InputError, LongtakeError, first_line, short_repr
from diffusers_helper.files import write_atomic
from diffusers_helper.memory.measuring import Measured, measure, wait_for
from diffusers_helper.planning.vae import VaeSettings
from diffusers_helper.units import count_text, gb_text
from rocm_nodes.decoding import decode
from rocm_nodes.host import comfy, device, device_lines, is_rocm
from rocm_nodes.monitors import empty_latent
from rocm_nodes.page import MeasuringNode, number, of_type, reported, switch, timing
from rocm_nodes.samplers import timed

_PROMPT = "a photograph of a lighthouse at dusk"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Row:
    width: int
    height: int
    cfg: float
    blas: str
    seconds_per_step: float | None = None
    spread: float | None = None
    sample_seconds: float | None = None
    decode_seconds: float | None = None
    peak_bytes: int | None = None
    error: str = ""


class ROCMFluxBenchmark(MeasuringNode):
    RETURN_TYPES = ("STRING", "STRING", "STRING", "STRING")
    RETURN_NAMES = (
        "BENCHMARK_RESULTS", "PERFORMANCE_CHART", "OPTIMIZATION_RECOMMENDATIONS", "MEMORY_ANALYSIS",
    )  # fmt: skip
    FUNCTION = "benchmark"
    CATEGORY = "ROCm Ninodes/Benchmark"
    DESCRIPTION = "Sample and decode at each size and scale, and write the figures as JSON."
    SEARCH_ALIASES = ("benchmark", "speed", "hipblaslt", "longtake")
    OUTPUT_TOOLTIPS = ("The figures.", "The times as a chart.", "What follows.", "The peaks of memory.")

    REQUIRED: ClassVar = {
        "model": of_type("MODEL", "The diffusion model to measure. It is not changed."),
        "vae": of_type("VAE", "The VAE that decodes the results. It is not changed."),
        "clip": of_type("CLIP", "The text encoder for the prompt of the measurement."),
        "test_resolutions": of_type(
            "STRING", "The sizes to measure: width x height in pixels, separated by commas.",
            default="256x320,512x512,1024x1024",
        ),
        "test_steps": number(20, 1, 100, "The steps of each run."),
        "test_cfg_values": of_type(
            "STRING", "The scales to measure, separated by commas.", default="1.0,3.5,8.0"
        ),
        "test_hipblas": switch(True, "Compare hipBLASLt with hipBLAS, on AMD cards only."),
        "generate_report": switch(True, "Write the figures to a JSON file, too."),
    }  # fmt: skip

    @classmethod
    def VALIDATE_INPUTS(
        cls, test_resolutions: str | None = None, test_cfg_values: str | None = None
    ) -> bool | str:
        # ComfyUI gives None for a text that another node makes, which is checked when the benchmark begins.
        if test_resolutions is None or test_cfg_values is None:
            return True
        try:
            cases_of(test_resolutions, test_cfg_values)
        except InputError as error:
            return str(error)
        return True

    def work(self, inputs: Any) -> dict[str, Any]:
        cases = cases_of(inputs.test_resolutions, inputs.test_cfg_values)
        clip = inputs.clip
        if clip is None:
            raise InputError("The input clip is empty.", "Load a text encoder with another node.")
        conditioning = clip.encode_from_tokens_scheduled(clip.tokenize(_PROMPT))
        libraries = ("hipblaslt", "hipblas") if inputs.test_hipblas and is_rocm() else ("",)
        rows = [
            _run(inputs.model, inputs.vae, conditioning, size, cfg, inputs.test_steps, blas)
            for blas in libraries
            for size, cfg in cases
        ]
        results = "\n".join(map(_line, rows))
        advice, memory = _advice(rows, inputs.test_hipblas), _memory(rows)
        lines = [*device_lines(), results, advice, memory]
        if inputs.generate_report:
            lines.append(f"The report was written to {_write(rows, inputs.test_steps)}.")
        return reported("Flux benchmark", lines, (results, _chart(rows), advice, memory))


def cases_of(resolutions: str, scales: str) -> list[tuple[tuple[int, ...], float]]:
    """Pair each size in a text such as "512x512, 1024x768", width first, with each scale in the other one."""
    sizes = _values(resolutions, lambda part: tuple(map(int, part.lower().split("x"))))
    if not sizes or any(
        len(size) != 2 or any(side % 16 or not 64 <= side <= 4096 for side in size) for size in sizes
    ):
        raise InputError(
            f"test_resolutions is {short_repr(resolutions)}; expected sizes such as 512x768, in multiples of "
            "16 from 64 to 4096."
        )
    numbers = _values(scales, float)
    if not numbers or not all(0 <= scale <= 100 for scale in numbers):
        raise InputError(
            f"test_cfg_values is {short_repr(scales)}; expected numbers from 0 to 100 such as 1.0,3.5."
        )
    return list(itertools.product(sizes, numbers))


def _values(text: str, convert: Callable[[str], _T]) -> list[_T]:
    try:
        return [convert(part) for part in text.split(",") if part.strip()]
    except ValueError:
        return []


def _run(
    model: Any, vae: Any, conditioning: Any, size: tuple[int, ...], cfg: float, steps: int, blas: str
) -> Row:
    width, height = size
    place = device()
    clone, times = timed(model)
    latent = {"samples": empty_latent(model, height, width)}
    try:
        with _library(blas):
            with timing() as run:
                (latent,) = comfy("nodes").common_ksampler(
                    clone, 0, steps, cfg, "euler", "simple", conditioning, conditioning, latent
                )
                wait_for(place)
            each = Measured(times.measured()[1:] or times.seconds, run.peak_bytes)
            decoded = measure(lambda: decode(vae, latent["samples"], VaeSettings()), place, runs=1)
    except (LongtakeError, RuntimeError) as error:
        # An interrupt is neither of these errors, so it ends the benchmark.
        return Row(width, height, cfg, blas, error=first_line(error))
    return Row(
        width, height, cfg, blas, each.median, each.spread, run.seconds, decoded.median,
        max(each.peak_bytes, decoded.peak_bytes) if place.has_gpu else None,
    )  # fmt: skip


@contextmanager
def _library(name: str) -> Iterator[None]:
    if not name:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt" if name == "hipblaslt" else "cublas")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def _line(row: Row) -> str:
    case = f"{row.width}x{row.height}, cfg {row.cfg:g}" + (f", {row.blas}" if row.blas else "")
    if row.error:
        return f"{case}: failed ({row.error})"
    peak = f", peak {gb_text(row.peak_bytes)} GB" if row.peak_bytes else ""
    return (
        f"{case}: {row.seconds_per_step:.3g} s per step (spread {row.spread:.0%}), sampled in "
        f"{row.sample_seconds:.3g} s, decoded in {row.decode_seconds:.3g} s{peak}"
    )


def _chart(rows: list[Row]) -> str:
    slowest = max((row.seconds_per_step or 0.0 for row in rows), default=0.0)
    return "\n".join(
        f"{row.width}x{row.height} {row.cfg:g} {'#' * max(1, round(40 * row.seconds_per_step / slowest))} "
        f"{row.seconds_per_step:.3g} s"
        for row in rows
        if row.seconds_per_step and slowest
    )


def _advice(rows: list[Row], wants_blas: bool) -> str:
    good = [row for row in rows if row.seconds_per_step]
    lines: list[str] = []
    if failed := len(rows) - len(good):
        lines.append(f"{failed} of {len(rows)} runs failed; the results name the reasons.")
    if wants_blas and not is_rocm():
        lines.append("hipBLASLt could not be measured: this torch does not compute on an AMD card.")
    pairs = [
        (fast.seconds_per_step, slow.seconds_per_step)
        for fast in good
        for slow in good
        if (fast.blas, slow.blas) == ("hipblaslt", "hipblas")
        and (fast.width, fast.height, fast.cfg) == (slow.width, slow.height, slow.cfg)
    ]
    if pairs:
        gain = 1 - sum(a or 0 for a, _ in pairs) / sum(b or 1 for _, b in pairs)
        words = "faster" if gain > 0 else "slower"
        lines.append(
            f"hipBLASLt was {abs(gain):.0%} {words} than hipBLAS over {count_text(len(pairs), 'run')}."
        )
    slow = [row for row in good if (row.decode_seconds or 0) > (row.sample_seconds or 0)]
    if slow:
        lines.append("Decoding took longer than sampling; measure it with ROCm VAE Performance Monitor.")
    return "\n".join(lines) or "The figures suggest no change."


def _memory(rows: list[Row]) -> str:
    peaks = [row.peak_bytes for row in rows if row.peak_bytes]
    _, memory = device_lines()
    if not peaks:
        return f"The peak could not be measured: there is no GPU. Memory now: {memory}."
    return f"Highest peak {gb_text(max(peaks))} GB, lowest {gb_text(min(peaks))} GB. Memory now: {memory}."


def _write(rows: list[Row], steps: int) -> Path:
    folder = Path(comfy("folder_paths").get_output_directory())
    file = folder / f"rocm_flux_benchmark_{time.strftime('%Y%m%d_%H%M%S')}.json"
    machine, memory = device_lines()
    version = getattr(comfy("comfyui_version"), "__version__", "unknown")
    facts = {
        "machine": machine, "memory": memory, "comfyui": version, "torch": torch.__version__,
        "steps": steps, "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(facts, indent=1).encode() + b"\n")
    return file

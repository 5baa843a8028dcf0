"""The samplers, which let ComfyUI sample, measure it, choose the precision, and leave out previews."""

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from diffusers_helper.errors import InputError
from diffusers_helper.units import count_text, duration
from rocm_nodes.host import comfy
from rocm_nodes.page import Inputs, Node, Run, choice, number, of_type, reported, switch, timing, unused_input

_CATEGORY = "ROCm Ninodes/Sampling"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MAX_SEED = 0xFFFFFFFFFFFFFFFF
_WRAPPER_KEY = "rocm_nodes"
_PATCHER = "comfy.patcher_extension"
_SAMPLERS = "comfy.samplers"
# Workflows of the first version have use_rocm_optimizations and memory_optimization, which are on by default,
# at the places of both switches.
_FIRST_VERSION = (
    "optimize_for_video and compatibility_mode are both on, as in a workflow of the first version of this "
    "node, so previews are shown; switch compatibility_mode off to leave them out."
)
# The place of the callback among the arguments of a wrapper around ComfyUI's sampling.
_CALLBACK = 5


class StepTimes:
    """The times of a model's evaluations. On a GPU, events mark them without waiting for the device."""

    def __init__(self) -> None:
        self._marks: list[tuple[Any, Any]] = []

    def __call__(self, executor: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = _mark()
        result = executor(*args, **kwargs)
        self._marks.append((start, _mark()))
        return result

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(
            start.elapsed_time(end) / 1000 if isinstance(start, torch.cuda.Event) else end - start
            for start, end in self._marks
        )

    def measured(self) -> tuple[float, ...]:
        if not self._marks:
            raise InputError("A patch replaces the model's evaluation.", "Remove it to measure the model.")
        return self.seconds


def _mark() -> Any:
    if not torch.cuda.is_initialized():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def timed(model: Any, precision: str = "auto") -> tuple[Any, StepTimes]:
    clone = model.clone()
    times = StepTimes()
    if precision in _DTYPES and _DTYPES[precision] != _compute_dtype(model):
        clone.set_model_compute_dtype(_DTYPES[precision])
    clone.add_wrapper_with_key(comfy(_PATCHER).WrappersMP.CALC_COND_BATCH, _WRAPPER_KEY, times)
    return clone, times


def _compute_dtype(model: Any) -> torch.dtype:
    return model.get_model_object("manual_cast_dtype") or model.model_dtype()


def _lines(times: StepTimes, run: Run, model: Any, precision: str) -> list[str]:
    steps = times.seconds
    dtype = _compute_dtype(model)
    lines = [f"Sampled in {duration(run.seconds)}."]
    name = str(dtype).removeprefix("torch.")
    if steps:
        lines.append(
            f"{count_text(len(steps), 'evaluation')} of the model: median {statistics.median(steps):.3g} s "
            f"each; the first took {steps[0]:.3g} s."
        )
    precision_text = f"{name}, as ComfyUI chose."
    if _DTYPES.get(precision, dtype) != dtype:
        precision_text = f"{precision} instead of {name}, so the bits differ from stock."
    return [*lines, run.peak, f"The model computed in {precision_text}"]


_SEED = number(
    0, 0, _MAX_SEED, "The start of the random noise; the same seed gives the same noise.",
    control_after_generate=True,
)  # fmt: skip
# The inputs that both samplers have, in the order of `nodes.common_ksampler`
_COMMON: Inputs = {
    "steps": number(20, 1, 10000, "The number of steps to denoise in."),
    "cfg": number(
        8.0, 0.0, 100.0, "How strictly the conditioning is followed; 1 leaves the negative one out.",
        step=0.1, round=0.01,
    ),
    "sampler_name": lambda: choice(comfy(_SAMPLERS).KSampler.SAMPLERS, "The method that takes the steps."),
    "scheduler": lambda: choice(
        comfy(_SAMPLERS).KSampler.SCHEDULERS, "How the noise is spread over the steps."
    ),
    "positive": of_type("CONDITIONING", "What the result should have."),
    "negative": of_type("CONDITIONING", "What the result should not have."),
    "latent_image": of_type("LATENT", "The latents to denoise."),
}  # fmt: skip
_MODEL = of_type("MODEL", "The diffusion model. It is not changed.")
_OPTIONAL = {
    "optimize_for_video": switch(False, "Leave out the previews, which take time in each step of a video."),
    "precision_mode": choice(
        ["auto", *_DTYPES],
        "The type in which the model computes. With auto, the result is bit-identical to that of ComfyUI's "
        "own node.",
        default="auto",
    ),
    "compatibility_mode": unused_input(False, "ComfyUI's own sampler is always used"),
}


def sampled(inputs: Any, *, seed: int, **options: Any) -> dict[str, Any]:
    clone, times = timed(inputs.model, inputs.precision_mode)
    is_old = inputs.optimize_for_video and inputs.compatibility_mode
    if inputs.optimize_for_video and not is_old:
        clone.add_wrapper_with_key(comfy(_PATCHER).WrappersMP.OUTER_SAMPLE, _WRAPPER_KEY, _without_previews)
    arguments = [getattr(inputs, name) for name in _COMMON]
    with timing() as run:
        result = comfy("nodes").common_ksampler(clone, seed, *arguments, **options)
    lines = _lines(times, run, inputs.model, inputs.precision_mode)
    return reported("Sampler", [*lines, _FIRST_VERSION if is_old else ""], result)


def _without_previews(executor: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    bar = comfy("comfy.utils").ProgressBar(1)

    def show(step: int, x0: Any, x: Any, total: int) -> None:
        bar.update_absolute(step + 1, total)

    return executor(*args[:_CALLBACK], show, *args[_CALLBACK + 1 :], **kwargs)


class ROCMOptimizedKSampler(Node):
    RETURN_TYPES = ("LATENT",)
    FUNCTION = "sample"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Sample as ComfyUI's KSampler does, bit for bit, and report the time of each step."
    SEARCH_ALIASES = ("sampler", "denoise", "generate", "longtake")
    OUTPUT_TOOLTIPS = ("The denoised latents.",)

    REQUIRED: ClassVar = {
        "model": _MODEL, "seed": _SEED, **_COMMON,
        "denoise": number(
            1.0, 0.0, 1.0,
            "The share of noise that is added and removed; below 1, the latents' content partly stays.",
            step=0.01,
        ),
    }  # fmt: skip
    OPTIONAL: ClassVar = _OPTIONAL

    def work(self, inputs: Any) -> dict[str, Any]:
        return sampled(inputs, seed=inputs.seed, denoise=inputs.denoise)


class ROCMOptimizedKSamplerAdvanced(ROCMOptimizedKSampler):
    DESCRIPTION = (
        "Sample as ComfyUI's KSampler (Advanced) does, bit for bit, and report the time of each step."
    )
    SEARCH_ALIASES = ("sampler", "denoise", "advanced sampler", "longtake")

    REQUIRED: ClassVar = {
        "model": _MODEL,
        "add_noise": choice(["enable", "disable"], "Whether noise is added first."),
        "noise_seed": _SEED,
        **_COMMON,
        "start_at_step": number(0, 0, 10000, "The first step to take."),
        "end_at_step": number(10000, 0, 10000, "The step before which to stop."),
        "return_with_leftover_noise": choice(
            ["disable", "enable"], "Whether the noise that is left at the end stays for another sampler."
        ),
    }

    def work(self, inputs: Any) -> dict[str, Any]:
        return sampled(
            inputs, seed=inputs.noise_seed, disable_noise=inputs.add_noise == "disable",
            start_step=inputs.start_at_step, last_step=inputs.end_at_step,
            force_full_denoise=inputs.return_with_leftover_noise == "disable",
        )  # fmt: skip


class ROCMSamplerCustomAdvanced(Node):
    RETURN_TYPES = ("LATENT", "LATENT")
    RETURN_NAMES = ("output", "denoised_output")
    FUNCTION = "sample"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Sample as ComfyUI's SamplerCustomAdvanced does, bit for bit, and report the time of each step."
    )
    SEARCH_ALIASES = ("sample", "guider", "longtake")
    OUTPUT_TOOLTIPS = ("The latents after the last step.", "The latents that the model predicted last.")

    REQUIRED: ClassVar = {
        "noise": of_type("NOISE", "The noise to begin with."),
        "guider": of_type("GUIDER", "The model with its conditionings."),
        "sampler": of_type("SAMPLER", "The method of sampling."),
        "sigmas": of_type("SIGMAS", "The noise levels, in descending order."),
        "latent_image": of_type("LATENT", "The latents to begin with, or empty ones."),
    }
    OPTIONAL: ClassVar = {  # workflows of rocm-ninodes have these values in this order
        "compatibility_mode": _OPTIONAL["compatibility_mode"],
        "flash_attention": unused_input(
            "auto", "ComfyUI chooses its attention when it starts", ["auto", "disable_flash", "force_flash"]
        ),
        "precision_mode": _OPTIONAL["precision_mode"],
    }

    def work(self, inputs: Any) -> dict[str, Any]:
        model = inputs.guider.model_patcher
        guider = copy.copy(inputs.guider)
        guider.model_patcher, times = timed(model, inputs.precision_mode)
        node = comfy("comfy_extras.nodes_custom_sampler").SamplerCustomAdvanced
        # Newer versions have a class method in place of the method, whose result is an object.
        sample = getattr(node, "execute", None) or node().sample
        with timing() as run:
            result = sample(inputs.noise, guider, inputs.sampler, inputs.sigmas, inputs.latent_image)
        lines = _lines(times, run, model, inputs.precision_mode)
        return reported("Custom sampler", lines, tuple(getattr(result, "result", result)))

"""The samplers, which let ComfyUI sample, measure it, choose the precision, and leave out previews."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from diffusers_helper.errors import InputError
from diffusers_helper.units import count_text, duration
from rocm_nodes.host import comfy
from rocm_nodes.page import Inputs, Node, Run, choice, idle, number, of_type, reported, switch, timing

_CATEGORY = "ROCm Ninodes/Sampling"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MOST_SEED = 0xFFFFFFFFFFFFFFFF
_KEY, _PLACES, _KINDS = "rocm_nodes", "comfy.patcher_extension", "comfy.samplers"
# Workflows of the first version have use_rocm_optimizations and memory_optimization, which are on by default,
# at the places of both switches.
_FIRST_VERSION = (
    "optimize_for_video and compatibility_mode are both on, as in a workflow of the first version of this "
    "node, so previews are shown; switch compatibility_mode off to leave them out."
)
# The place of the callback among the arguments of a wrapper around ComfyUI's sampling.
_CALLBACK = 5


class StepTimes:
    """A wrapper around each evaluation of a model that records its begin and end.

    On a GPU, events mark the times without waiting for the device. They are read at the end.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[Any, Any]] = []

    def __call__(self, executor: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        begin = _mark()
        result = executor(*arguments, **named)
        self._marks.append((begin, _mark()))
        return result

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(
            begin.elapsed_time(end) / 1000 if isinstance(begin, torch.cuda.Event) else end - begin
            for begin, end in self._marks
        )

    def measured(self) -> tuple[float, ...]:
        """Return the time of each evaluation, or raise InputError if a patch replaces what is measured."""
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
    """Return a clone of a model that computes in a precision, and the times of its evaluations."""
    clone, times = model.clone(), StepTimes()
    if precision in _DTYPES and _DTYPES[precision] != _compute_dtype(model):
        clone.set_model_compute_dtype(_DTYPES[precision])
    clone.add_wrapper_with_key(comfy(_PLACES).WrappersMP.CALC_COND_BATCH, _KEY, times)
    return clone, times


def _compute_dtype(model: Any) -> torch.dtype:
    """Return the type in which a model computes, which ComfyUI or a node before has chosen."""
    return model.get_model_object("manual_cast_dtype") or model.model_dtype()


def _lines(times: StepTimes, run: Run, model: Any, precision: str) -> list[str]:
    """Return sentences on the measurements, and on the type in which the model computed."""
    steps, own = times.seconds, _compute_dtype(model)
    lines, name = [f"Sampled in {duration(run.seconds)}."], str(own).removeprefix("torch.")
    if steps:
        lines.append(
            f"{count_text(len(steps), 'evaluation')} of the model: median {statistics.median(steps):.3g} s "
            f"each; the first took {steps[0]:.3g} s."
        )
    how = f"{name}, as ComfyUI chose."
    if _DTYPES.get(precision, own) != own:
        how = f"{precision} instead of {name}, so the bits differ from stock."
    return [*lines, run.peak, f"The model computed in {how}"]


_SEED = number(
    0, 0, _MOST_SEED, "The start of the random noise; the same seed gives the same noise.",
    control_after_generate=True,
)  # fmt: skip
# The inputs from `steps` to `latent_image`, which both samplers have.
_COMMON: Inputs = {
    "steps": number(20, 1, 10000, "The number of steps to denoise in."),
    "cfg": number(
        8.0, 0.0, 100.0, "How strictly the conditioning is followed; 1 leaves the negative one out.",
        step=0.1, round=0.01,
    ),
    "sampler_name": lambda: choice(comfy(_KINDS).KSampler.SAMPLERS, "The method that takes the steps."),
    "scheduler": lambda: choice(
        comfy(_KINDS).KSampler.SCHEDULERS, "How the noise is spread over the steps."
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
    "compatibility_mode": idle(False, "ComfyUI's own sampler is always used"),
}


def sampled(given: Any, *, seed: int, **options: Any) -> dict[str, Any]:
    """Sample with ComfyUI, and return the node's result with its report.

    `options` are further arguments of `nodes.common_ksampler`.
    """
    clone, times = timed(given.model, given.precision_mode)
    is_old = given.optimize_for_video and given.compatibility_mode
    if given.optimize_for_video and not is_old:
        clone.add_wrapper_with_key(comfy(_PLACES).WrappersMP.OUTER_SAMPLE, _KEY, _without_previews)
    arguments = given.steps, given.cfg, given.sampler_name, given.scheduler, given.positive, given.negative
    with timing() as run:
        result = comfy("nodes").common_ksampler(clone, seed, *arguments, given.latent_image, **options)
    lines = _lines(times, run, given.model, given.precision_mode)
    return reported("Sampler", [*lines, _FIRST_VERSION if is_old else ""], result)


def _without_previews(executor: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Sample with a callback that moves ComfyUI's progress bar and makes no pictures."""
    bar = comfy("comfy.utils").ProgressBar(1)

    def show(step: int, x0: Any, x: Any, total: int) -> None:
        bar.update_absolute(step + 1, total)

    return executor(*arguments[:_CALLBACK], show, *arguments[_CALLBACK + 1 :], **named)


class ROCMOptimizedKSampler(Node):
    """A sampler with the inputs of ComfyUI's KSampler, a choice of precision, and a report of its times."""

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

    def work(self, given: Any) -> dict[str, Any]:
        return sampled(given, seed=given.seed, denoise=given.denoise)


class ROCMOptimizedKSamplerAdvanced(ROCMOptimizedKSampler):
    """A sampler with the inputs of ComfyUI's KSampler (Advanced), which can do a part of the steps."""

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

    def work(self, given: Any) -> dict[str, Any]:
        return sampled(
            given, seed=given.noise_seed, disable_noise=given.add_noise == "disable",
            start_step=given.start_at_step, last_step=given.end_at_step,
            force_full_denoise=given.return_with_leftover_noise == "disable",
        )  # fmt: skip


class ROCMSamplerCustomAdvanced(Node):
    """A sampler with the inputs of ComfyUI's SamplerCustomAdvanced, and a report of its times."""

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
        "flash_attention": idle(
            "auto", "ComfyUI chooses its attention when it starts", ["auto", "disable_flash", "force_flash"]
        ),
        "precision_mode": _OPTIONAL["precision_mode"],
    }

    def work(self, given: Any) -> dict[str, Any]:
        model, guide = given.guider.model_patcher, copy.copy(given.guider)
        guide.model_patcher, times = timed(model, given.precision_mode)
        node = comfy("comfy_extras.nodes_custom_sampler").SamplerCustomAdvanced
        # Newer versions have a class method in place of the method, whose result is an object.
        work = getattr(node, "execute", None) or node().sample
        with timing() as run:
            found = work(given.noise, guide, given.sampler, given.sigmas, given.latent_image)
        lines = _lines(times, run, model, given.precision_mode)
        return reported("Custom sampler", lines, tuple(getattr(found, "result", found)))

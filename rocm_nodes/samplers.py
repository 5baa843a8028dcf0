"""The samplers, which let ComfyUI sample, measure it, choose the precision, and leave out previews."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from diffusers_helper.errors import InputError
from diffusers_helper.memory.device import Device
from diffusers_helper.units import duration, gb_text
from rocm_nodes.guide import explained
from rocm_nodes.host import comfy, device
from rocm_nodes.reports import reported

_CATEGORY = "ROCm Ninodes/Sampling"
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MOST_SEED = 0xFFFFFFFFFFFFFFFF
_KEY = "rocm_nodes"
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
        """Return the time of each evaluation."""
        return tuple(
            begin.elapsed_time(end) / 1000 if isinstance(begin, torch.cuda.Event) else end - begin
            for begin, end in self._marks
        )

    def measured(self) -> tuple[float, ...]:
        """Return the time of each evaluation, of which there is at least one.

        Raises:
            InputError: If there is none, because a patch of the model replaces what is measured.
        """
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
    if precision in _DTYPES:
        clone.set_model_compute_dtype(_DTYPES[precision])
    clone.add_wrapper_with_key(_wrappers().CALC_COND_BATCH, _KEY, times)
    return clone, times


def _wrappers() -> Any:
    """Return the names of the places where ComfyUI takes wrappers."""
    return comfy("comfy.patcher_extension").WrappersMP


def lines_of(times: StepTimes, seconds: float, place: Device) -> list[str]:
    """Return sentences on the measurements."""
    steps = times.seconds
    lines = [f"Sampled in {duration(seconds)}."]
    if steps:
        lines.append(
            f"{len(steps)} evaluations of the model: median {statistics.median(steps):.3g} s each; "
            f"the first took {steps[0]:.3g} s."
        )
    if place.has_gpu:
        lines.append(f"The peak on the device was {gb_text(place.peak_bytes())} GB.")
    return lines


def _seed(name: str) -> dict[str, Any]:
    return {
        name: (
            "INT",
            {"default": 0, "min": 0, "max": _MOST_SEED, "control_after_generate": True},
        )
    }


def _common() -> dict[str, Any]:
    """Return the inputs from `steps` to `latent_image`, which both samplers have."""
    kinds = comfy("comfy.samplers").KSampler
    return {
        "steps": ("INT", {"default": 20, "min": 1, "max": 10000}),
        "cfg": ("FLOAT", {"default": 8.0, "min": 0.0, "max": 100.0, "step": 0.1, "round": 0.01}),
        "sampler_name": (kinds.SAMPLERS,),
        "scheduler": (kinds.SCHEDULERS,),
        "positive": ("CONDITIONING",),
        "negative": ("CONDITIONING",),
        "latent_image": ("LATENT",),
    }


def _optional() -> dict[str, Any]:
    return {
        "optimize_for_video": (
            "BOOLEAN",
            {
                "default": False,
                "tooltip": "Leave out the previews, which take time in each step of a video.",
            },
        ),
        "precision_mode": (
            ["auto", *_DTYPES],
            {
                "default": "auto",
                "tooltip": "The type in which the model computes. With auto, the result is bit-identical to "
                "that of ComfyUI's own node.",
            },
        ),
        "compatibility_mode": (
            "BOOLEAN",
            {"default": False, "tooltip": "This has no effect: ComfyUI's own sampler is always used."},
        ),
    }


def sampled(
    model: Any, latent: dict[str, Any], options: dict[str, Any], *, precision: str, has_previews: bool
) -> dict[str, Any]:
    """Sample with ComfyUI, and return the node's result with its report.

    Args:
        options: The arguments of `nodes.common_ksampler` from `seed` on, by name.
    """
    clone, times = timed(model, precision)
    place = device()
    if place.has_gpu:
        place.reset_peak()
    if not has_previews:
        clone.add_wrapper_with_key(_wrappers().OUTER_SAMPLE, _KEY, _without_previews)
    begin = time.perf_counter()
    with explained():
        (result,) = comfy("nodes").common_ksampler(clone, latent=latent, **options)
    lines = lines_of(times, time.perf_counter() - begin, place)
    if precision in _DTYPES:
        lines.append(f"The model computed in {precision}, so the bits differ from those of the stock node.")
    return reported("Sampler", lines, (result,))


def _without_previews(executor: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Sample with a callback that moves ComfyUI's progress bar and makes no pictures."""
    bar = comfy("comfy.utils").ProgressBar(1)

    def show(step: int, x0: Any, x: Any, total: int) -> None:
        bar.update_absolute(step + 1, total)

    return executor(*arguments[:_CALLBACK], show, *arguments[_CALLBACK + 1 :], **named)


class ROCMOptimizedKSampler:
    """A sampler with the inputs of ComfyUI's KSampler, a choice of precision, and a report of its times."""

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "sample"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Sample as ComfyUI's KSampler does, bit for bit, and report the time of each step."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        strength = ("FLOAT", {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01})
        return {
            "required": {"model": ("MODEL",), **_seed("seed"), **_common(), "denoise": strength},
            "optional": _optional(),
        }

    def sample(
        self,
        model: Any,
        seed: int,
        latent_image: dict[str, Any],
        optimize_for_video: bool = False,
        precision_mode: str = "auto",
        compatibility_mode: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        options |= {"seed": seed}
        return sampled(
            model, latent_image, options, precision=precision_mode, has_previews=not optimize_for_video
        )


class ROCMOptimizedKSamplerAdvanced:
    """A sampler with the inputs of ComfyUI's KSampler (Advanced), which can do a part of the steps."""

    RETURN_TYPES = ("LATENT",)
    FUNCTION = "sample"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Sample as ComfyUI's KSampler (Advanced) does, bit for bit, and report the time of each step."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "model": ("MODEL",),
                "add_noise": (["enable", "disable"],),
                **_seed("noise_seed"),
                **_common(),
                "start_at_step": ("INT", {"default": 0, "min": 0, "max": 10000}),
                "end_at_step": ("INT", {"default": 10000, "min": 0, "max": 10000}),
                "return_with_leftover_noise": (["disable", "enable"],),
            },
            "optional": _optional(),
        }

    def sample(
        self,
        model: Any,
        add_noise: str,
        noise_seed: int,
        latent_image: dict[str, Any],
        start_at_step: int,
        end_at_step: int,
        return_with_leftover_noise: str,
        optimize_for_video: bool = False,
        precision_mode: str = "auto",
        compatibility_mode: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        options |= {
            "seed": noise_seed,
            "disable_noise": add_noise == "disable",
            "start_step": start_at_step,
            "last_step": end_at_step,
            "force_full_denoise": return_with_leftover_noise == "disable",
        }
        return sampled(
            model, latent_image, options, precision=precision_mode, has_previews=not optimize_for_video
        )

"""The form of a node that ComfyUI expects, and what its page shows: inputs, reports, and guides in errors.

Below a node there is room for two short lines; a script of the page (`pack/web/nodes.js`) shows the rest.
"""

import logging
import math
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from diffusers_helper.failures import DriverStep, driver_failure
from diffusers_helper.planning.out_of_memory import (
    OutOfDeviceMemory,
    Remedy,
    is_out_of_memory,
    read_out_of_memory,
)
from diffusers_helper.planning.profiles import detect
from diffusers_helper.units import gb_text
from rocm_nodes.host import device, management, show_text

_MAX_LINE_LENGTH = 80
NO_EFFECT = "This has no effect"
"""The beginning of the description of an input that only old workflows have."""
_log = logging.getLogger(__package__)
# ComfyUI's name of the type of an input, or a list of choices, and further options
Input = tuple[Any, dict[str, Any]]
# The inputs of a node by name. A function makes one that depends on this ComfyUI.
Inputs = Mapping[str, Input | Callable[[], Input]]


class Node:
    """What ComfyUI reads of a node, made from the tables of its inputs.

    ComfyUI calls the method that `FUNCTION` names, which hands the inputs to `work` as attributes.
    """

    FUNCTION = ""
    REQUIRED: ClassVar[Inputs] = {}
    OPTIONAL: ClassVar[Inputs] = {}

    def __init_subclass__(cls) -> None:
        if "work" in cls.__dict__:
            setattr(cls, cls.FUNCTION, Node._call)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            group: {name: entry() if callable(entry) else entry for name, entry in inputs.items()}
            for group, inputs in (("required", cls.REQUIRED), ("optional", cls.OPTIONAL))
            if inputs
        }

    def _call(self, **inputs: Any) -> dict[str, Any]:
        entries = {**self.REQUIRED, **self.OPTIONAL}.items()
        defaults = {name: entry[1].get("default") for name, entry in entries if not callable(entry)}
        return self.work(SimpleNamespace(**{**defaults, **inputs}))

    def work(self, inputs: Any) -> dict[str, Any]:
        raise NotImplementedError


class MeasuringNode(Node):
    """A node that runs each time, since a measurement is never taken from ComfyUI's cache."""

    OUTPUT_NODE = True

    @classmethod
    def IS_CHANGED(cls, **inputs: Any) -> float:
        return math.nan


def of_type(type_name: str, tooltip: str, **options: Any) -> Input:
    return (type_name, {"tooltip": tooltip, **options})


def switch(default: bool, tooltip: str, **options: Any) -> Input:
    return ("BOOLEAN", {"default": default, "tooltip": tooltip, **options})


def number(default: float, low: float, high: float, tooltip: str, **options: Any) -> Input:
    type_name = "INT" if isinstance(default, int) else "FLOAT"
    return (type_name, {"default": default, "min": low, "max": high, "tooltip": tooltip, **options})


def choice(choices: Iterable[str], tooltip: str, **options: Any) -> Input:
    """Describe an input for one of several words. Without a default, ComfyUI's page takes the first."""
    return (list(choices), {"tooltip": tooltip, **options})


def unused_input(default: float | str, reason: str, choices: Iterable[str] = (), **options: Any) -> Input:
    """Describe an input that old workflows have and that has no effect. The page does not draw it."""
    type_names = {bool: "BOOLEAN", int: "INT", float: "FLOAT"}
    type_name = list(choices) or type_names[type(default)]
    tooltip = f"{NO_EFFECT}: {reason}."
    return (type_name, {"default": default, "tooltip": tooltip, "advanced": True, "hidden": True, **options})


def announce(line: str) -> None:
    show_text(line)
    _log.info(line)


def reported(title: str, lines: Sequence[str], result: tuple[Any, ...]) -> dict[str, Any]:
    text = "\n".join(line for line in lines if line)
    show_text(textwrap.shorten(text.partition("\n")[0], _MAX_LINE_LENGTH, placeholder=" ..."))
    _log.info("%s: %s", title, text.replace("\n", " "))
    return {"ui": {"text": [text]}, "result": result}


COMFYUI: dict[Remedy, str] = {
    "limits": "Check the driver's limits: the size of GTT (ttm.pages_limit) and of the BIOS carve-out, free "
    "system memory and swap, and the limit on locked memory (ulimit -l).",
    "resolution": "Reduce batch size, width or height. In a decode, set tile_size to 512 or less.",
    "preserved": "Start ComfyUI with --reserve-vram 2 to keep fewer weights on the card.",
    "allocator": "With torch 2.12 and ROCm 10 or newer, try PYTORCH_ALLOC_CONF=expandable_segments:True in "
    "ComfyUI's environment.",
    "unload": "Unload other models first: use the node ROCm Memory Optimizer with the level aggressive.",
    "close": "Close other programs that use the card.",
    "restart": "Restart ComfyUI: a new process starts with unfragmented memory.",
    "smaller": "Use a smaller model, or one with 8-bit weights.",
    "elsewhere": "Check which other models are loaded in ComfyUI, and that no other program, and no second "
    "ComfyUI, holds the same model on the card.",
    "versions": "Check that PyTorch and ROCm are up to date.",
}


COMFYUI_DRIVER: dict[DriverStep, str] = {
    "again": "Restart ComfyUI and run the workflow again: a new process starts the device anew.",
    "cache": "Remove what MIOpen has learned and compiled: the folders ~/.config/miopen and ~/.cache/miopen.",
    "find_mode": "Start ComfyUI with MIOPEN_FIND_MODE=NORMAL, with which MIOpen tries every kernel.",
    "blas": "On an AMD card, start ComfyUI with TORCH_BLAS_PREFER_HIPBLASLT=0, so that PyTorch "
    "uses its other library for matrix products.",
    "versions": "Check that PyTorch and ROCm are up to date and made for this card.",
    "report": "If nothing helps, report it with the log of a start with MIOPEN_LOG_LEVEL=5.",
}


@contextmanager
def explained() -> Iterator[None]:
    """Turn an out-of-memory error or a failure of the card's libraries into an error with a guide.

    It is raised after the one it replaces was handled, so the failed call's tensors are freed.
    """
    try:
        yield
    except OutOfDeviceMemory as error:
        new_error = _with_guide(error)
    except Exception as error:
        if is_out_of_memory(error):
            details = read_out_of_memory(str(error))
            new_error = _with_guide(OutOfDeviceMemory(details, is_apu=detect({}).is_apu, sentences=COMFYUI))
        elif isinstance(error, RuntimeError) and (failure := driver_failure(str(error), COMFYUI_DRIVER)):
            new_error = failure
        else:
            raise
    else:
        return
    raise new_error


def _with_guide(error: OutOfDeviceMemory) -> Exception:
    """Make an error that ComfyUI treats as one of its own on memory, after which it unloads its models."""
    error_class = type("OutOfMemoryWithGuide", (management().OOM_EXCEPTION,), {})
    return error_class(f"{error.message}\n{error.remedy}\nThe driver's words: {error.details.text}")


@dataclass(slots=True)
class Run:
    seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def peak(self) -> str:
        return f"The peak on the device was {gb_text(self.peak_bytes)} GB." if self.peak_bytes else ""


@contextmanager
def timing() -> Iterator[Run]:
    current_device, run = device(), Run()
    current_device.reset_peak()
    start_time = time.perf_counter()
    with explained():
        yield run
    run.seconds = time.perf_counter() - start_time
    run.peak_bytes = current_device.peak_bytes() if current_device.has_gpu else 0

"""The memory optimizer, which gives memory back at its place in the workflow, and reports the bytes."""

from __future__ import annotations

import gc
import math
from typing import Any

from diffusers_helper.units import count_text, gb_text
from rocm_nodes.host import device_lines, free_bytes, management
from rocm_nodes.page import choice, idle, of_type, reported, switch

_LEVELS = ("conservative", "balanced", "aggressive")
# The least unused memory of the allocator that is worth giving back.
_WORTH_BYTES = 256 * 1024**2


class Anything(str):
    """The name of a type that equals every other type's name, so ComfyUI connects it to any output."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


ANY = Anything("*")


class ROCMMemoryOptimizer:
    """A node that frees memory when its input arrives, and passes the input on, which fixes its place."""

    RETURN_TYPES = ("STRING", "STRING", "STRING", ANY)
    RETURN_NAMES = ("MEMORY_STATUS", "OPTIMIZATION_LOG", "RECOMMENDATIONS", "passed_on")
    FUNCTION = "optimize"
    CATEGORY = "ROCm Ninodes/Memory"
    OUTPUT_NODE = True
    DESCRIPTION = (
        "Give memory back: conservative only reports, balanced empties the allocator, and aggressive unloads "
        "all models first."
    )
    SEARCH_ALIASES = ("free memory", "unload models", "clear vram", "longtake")
    OUTPUT_TOOLTIPS = ("The use of the memory.", "What was done.", "What else could be done.", "The input.")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "optimization_level": choice(
                    _LEVELS, "How much is given back; see the description.", default="balanced"
                ),
                "enable_gc": switch(True, "Run the garbage collector first."),
                "clear_cache": switch(True, "Empty torch's allocator."),
                "cleanup_frequency": idle(10, "the node runs each time that it is reached", min=1, max=100),
            },
            "optional": {"anything": of_type(ANY, "A value to pass on. The node runs once it has arrived.")},
        }

    @classmethod
    def IS_CHANGED(cls, **inputs: Any) -> float:
        return math.nan  # the node runs each time, whatever ComfyUI has cached

    @classmethod
    def VALIDATE_INPUTS(cls, input_types: dict[str, str]) -> bool:
        return True  # any type may be passed on

    def optimize(
        self,
        optimization_level: str,
        enable_gc: bool,
        clear_cache: bool,
        cleanup_frequency: int = 10,
        anything: Any = None,
    ) -> dict[str, Any]:
        host = management()
        place = host.get_torch_device()
        before = _driver_free(place)
        lines: list[str] = []
        if enable_gc and optimization_level != "conservative":
            lines.append(f"Python's garbage collector found {gc.collect()} objects.")
        if optimization_level == "aggressive":
            host.unload_all_models()
            lines.append("All models were unloaded.")
        if clear_cache and optimization_level != "conservative":
            lines.append(_emptied(place, optimization_level == "aggressive"))
        given = _driver_free(place) - before
        lines.append(f"{gb_text(max(0, given))} GB were given back to the driver ({max(0, given)} bytes).")
        log = "\n".join(lines)
        status = " ".join(device_lines()) + "."
        advice = _advice(place, optimization_level)
        return reported("Memory optimizer", [status, log, advice], (status, log, advice, anything))


def _emptied(place: Any, always: bool) -> str:
    idle = _idle(place)
    if idle < _WORTH_BYTES and not always:
        return f"The allocator was not emptied, because only {gb_text(idle)} GB of its memory are unused."
    management().soft_empty_cache(force=True)
    return f"The allocator was emptied; {gb_text(idle)} GB of its memory were unused."


def _idle(place: Any) -> int:
    """Return the bytes that torch's allocator holds and no tensor uses."""
    _, idle = management().get_free_memory(place, torch_free_too=True)
    return int(idle) if place.type == "cuda" else 0


def _driver_free(place: Any) -> int:
    """Return the bytes that other programs could allocate now."""
    return free_bytes(place) - _idle(place)


def _advice(place: Any, level: str) -> str:
    idle = _idle(place)
    if level == "conservative" and idle >= _WORTH_BYTES:
        return f"The level balanced could give back {gb_text(idle)} GB."
    loaded = len(management().loaded_models())
    if level != "aggressive" and loaded:
        return f"The level aggressive would unload {count_text(loaded, 'model')} until they are used again."
    return "There is nothing else to give back."

"""The loaders, which let ComfyUI load a file, and report its content, its memory and any fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from diffusers_helper.errors import InputError
from diffusers_helper.units import count_text, duration, gb_text
from diffusers_helper.weights.inspection import Inspection, inspect_checkpoint
from rocm_nodes.guide import explained
from rocm_nodes.host import comfy, free_bytes, machine_line, management, memory_line, total_bytes
from rocm_nodes.reports import reported

_CATEGORY = "ROCm Ninodes/Loaders"
_DTYPES = {"fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class ROCMOptimizedCheckpointLoader:
    """A loader of checkpoints: model, text encoder and VAE from one file."""

    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    FUNCTION = "load_checkpoint"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Load a checkpoint as ComfyUI does, and report its content, its memory, and what failed."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        names = comfy("folder_paths").get_filename_list("checkpoints")
        return {
            "required": {"ckpt_name": (names, {"tooltip": "The checkpoint to load."})},
            "optional": {
                "compatibility_mode": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "This has no effect: ComfyUI's own loader loads every file.",
                    },
                )
            },
        }

    def load_checkpoint(self, ckpt_name: str, compatibility_mode: bool = False) -> dict[str, Any]:
        paths = comfy("folder_paths")
        path = paths.get_full_path_or_raise("checkpoints", ckpt_name)

        def load() -> tuple[Any, ...]:
            return comfy("comfy.sd").load_checkpoint_guess_config(
                path,
                output_vae=True,
                output_clip=True,
                embedding_directory=paths.get_folder_paths("embeddings"),
            )[:3]

        lines, result = _loaded(_usable(Path(path)), load)
        if len(result) > 1 and result[1] is None:
            lines.append("The checkpoint has no text encoder; load one with another node.")
        return reported("Checkpoint loader", lines, result)


class ROCMOptimizedUNetLoader:
    """A loader of diffusion models that come without text encoder and VAE."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load_unet"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Load a diffusion model as ComfyUI does, and report its content and its memory."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        names = comfy("folder_paths").get_filename_list("diffusion_models")
        return {
            "required": {"unet_name": (names, {"tooltip": "The diffusion model to load."})},
            "optional": {
                "weight_dtype": (
                    ["default", *_DTYPES],
                    {
                        "default": "default",
                        "tooltip": "The type that weights are kept in. A file with scaled fp8 weights keeps "
                        "its own.",
                    },
                )
            },
        }

    def load_unet(self, unet_name: str, weight_dtype: str = "default") -> dict[str, Any]:
        path = comfy("folder_paths").get_full_path_or_raise("diffusion_models", unet_name)
        facts = _usable(Path(path))
        options: dict[str, Any] = {}
        notes: list[str] = []
        if weight_dtype in _DTYPES:
            if facts.quantised.startswith("scaled"):
                notes.append(
                    f"weight_dtype {weight_dtype} is not used: the file's fp8 weights have scales, which "
                    "another type would lose."
                )
            else:
                options["dtype"] = _DTYPES[weight_dtype]

        def load() -> tuple[Any, ...]:
            return (comfy("comfy.sd").load_diffusion_model(path, model_options=options),)

        lines, result = _loaded(facts, load)
        return reported("Diffusion loader", [*notes, *lines], result)


def _usable(path: Path) -> Inspection:
    """Return the facts about a file that can be loaded.

    Raises:
        InputError: If it is damaged, or if loading it would run the code in it.
    """
    facts = inspect_checkpoint(path)
    if facts.problems:
        raise InputError(facts.problems[0])
    # Newer versions read every pickle by its weights alone, and have no such name.
    if facts.format == "pickle" and not getattr(comfy("comfy.utils"), "ALWAYS_SAFE_LOAD", True):
        raise InputError(
            f"{path.name} is a pickle, and this torch would run the code in it.",
            "Update torch, or use a .safetensors file.",
        )
    return facts


def _loaded(facts: Inspection, load: Callable[[], tuple[Any, ...]]) -> tuple[list[str], tuple[Any, ...]]:
    """Load a file, and return a report and the result. No memory is trimmed before or during a load."""
    place = management().get_torch_device()
    need, free, total = facts.bytes or facts.file_bytes, free_bytes(place), total_bytes(place)
    begin = time.perf_counter()
    with explained():
        result = load()
    seconds = time.perf_counter() - begin
    lines = [
        _contents(facts),
        f"Its weights take {gb_text(need)} GB as stored; {gb_text(free)} GB were free."
        + (" They do not fit, so ComfyUI keeps a part of them in main memory." if need > free else ""),
        *_quantised_lines(facts),
        machine_line(place),
        f"Memory before: {memory_line(free, total)}. After: {memory_line(free_bytes(place), total)}.",
        f"Loaded in {duration(seconds)}, {need / max(seconds, 1e-9) / 1024**3:.2f} GB/s.",
        *_types_in_use(result[0] if result else None),
    ]
    return lines, result


def _contents(facts: Inspection) -> str:
    shares = ", ".join(f"{share:.0%} {name}" for name, share in facts.dtypes.items())
    model = facts.model or "an unknown model"
    number = count_text(facts.tensors, "tensor")
    return f"{Path(facts.path).name}: {model}, {number}, {shares or facts.format}."


def _quantised_lines(facts: Inspection) -> list[str]:
    if facts.quantised:
        return [
            f"The weights are quantised ({facts.quantised}) and keep their type. Cards before gfx12 and "
            "CDNA3 have no fp8 arithmetic: fp8 saves memory there, but each layer is converted when it runs."
        ]
    return [f"{hint} The header shows no quantised weights." for hint in facts.hints]


def _types_in_use(model: Any) -> list[str]:
    """Return a sentence on the types that ComfyUI has chosen for a loaded model, if it reports them."""
    kept = model.model_dtype() if hasattr(model, "model_dtype") else None
    cast = getattr(getattr(model, "model", None), "manual_cast_dtype", None)
    if kept is None:
        return []
    return [f"ComfyUI keeps the weights in {kept}" + (f" and computes in {cast}." if cast else ".")]

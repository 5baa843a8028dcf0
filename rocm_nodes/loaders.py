"""The loaders, which let ComfyUI load a file, and report its content, its memory and any fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from diffusers_helper.errors import InputError
from diffusers_helper.machine.packages import FRAMEPACK, install_command, package_problem, version_of
from diffusers_helper.units import count_text, duration, gb_text
from diffusers_helper.weights.inspection import Inspection, inspect_checkpoint
from rocm_nodes.host import comfy, device_lines, file_names, free_bytes, importing, management, model_files
from rocm_nodes.page import Node, announce, choice, explained, number, of_type, reported, timing, unused_input

_CATEGORY = "ROCm Ninodes/Loaders"
_MAX_NAMES = 5
# The words with which ComfyUI logs a key of the file, or a weight of the model, that it cannot use.
_COMPLAINTS = ("lora key not loaded: ", "NOT LOADED ")
_DTYPES = {"fp8_e4m3fn": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class ROCMOptimizedCheckpointLoader(Node):
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    FUNCTION = "load_checkpoint"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Load a checkpoint as ComfyUI does, and report its content, its memory, and what failed."
    SEARCH_ALIASES = ("load checkpoint", "load model", "ckpt", "longtake")
    OUTPUT_TOOLTIPS = ("The diffusion model.", "The text encoder, if the file has one.", "The VAE.")

    REQUIRED: ClassVar = {"ckpt_name": lambda: choice(file_names("checkpoints"), "The checkpoint to load.")}
    OPTIONAL: ClassVar = {"compatibility_mode": unused_input(False, "ComfyUI's own loader loads every file")}

    def work(self, inputs: Any) -> dict[str, Any]:
        path = _path("checkpoints", inputs.ckpt_name)

        def load() -> tuple[Any, ...]:
            return comfy("comfy.sd").load_checkpoint_guess_config(
                path, output_vae=True, output_clip=True,
                embedding_directory=comfy("folder_paths").get_folder_paths("embeddings"),
            )[:3]  # fmt: skip

        lines, result = _loaded(usable(Path(path)), load)
        if result[1] is None:
            lines.append("The checkpoint has no text encoder; load one with another node.")
        return reported("Checkpoint loader", lines, result)


class ROCMOptimizedUNetLoader(Node):
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load_unet"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Load a diffusion model as ComfyUI does, and report its content and its memory."
    SEARCH_ALIASES = ("load diffusion model", "load unet", "load model", "longtake")
    OUTPUT_TOOLTIPS = ("The diffusion model.",)

    REQUIRED: ClassVar = {
        "unet_name": lambda: choice(
            model_files("diffusion_models"),
            "The diffusion model to load. Weights in a GGUF file stay quantised.",
        )
    }
    OPTIONAL: ClassVar = {
        "weight_dtype": choice(
            ["default", *_DTYPES],
            "The type that weights are kept in. A file with scaled fp8 weights keeps its own.",
            default="default",
        )
    }

    def work(self, inputs: Any) -> dict[str, Any]:
        path = _path("diffusion_models", inputs.unet_name)
        weight_dtype = inputs.weight_dtype
        facts = usable(Path(path))
        options: dict[str, Any] = {}
        notes: list[str] = []
        is_gguf = facts.format == "gguf"
        if weight_dtype in _DTYPES:
            if is_gguf or facts.quantised.startswith("scaled"):
                reason = "stay as they are" if is_gguf else "have scales, which another type would lose"
                notes.append(f"weight_dtype {weight_dtype} is not used: the file's weights {reason}.")
            else:
                options["dtype"] = _DTYPES[weight_dtype]

        def load() -> tuple[Any, ...]:
            if is_gguf:
                check_packages("gguf", "diffusers")
                with importing():
                    from rocm_nodes.quantised import load_gguf

                return (load_gguf(Path(path)),)
            return (comfy("comfy.sd").load_diffusion_model(path, model_options=options),)

        lines, result = _loaded(facts, load)
        return reported("Diffusion loader", [*notes, *lines], result)


class ROCMLoRALoader(Node):
    RETURN_TYPES = ("MODEL", "CLIP")
    FUNCTION = "load_lora"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Add a LoRA as ComfyUI does, and report how many of its keys fit the model."
    SEARCH_ALIASES = ("load lora", "longtake")
    OUTPUT_TOOLTIPS = ("The model with the LoRA.", "The text encoder with the LoRA, if one is connected.")

    REQUIRED: ClassVar = {
        "model": of_type("MODEL", "The model that the LoRA changes, which may be quantised."),
        "lora_name": lambda: choice(file_names("loras"), "The file of the LoRA."),
        "strength_model": number(1.0, -10.0, 10.0, "How much the model changes.", step=0.01),
        "strength_clip": number(1.0, -10.0, 10.0, "How much the text encoder changes.", step=0.01),
    }
    OPTIONAL: ClassVar = {"clip": of_type("CLIP", "The text encoder that the LoRA changes, if any.")}

    def work(self, inputs: Any) -> dict[str, Any]:
        path = _path("loras", inputs.lora_name)
        model = inputs.model
        clip = inputs.clip
        facts = usable(Path(path))
        with explained(), _Complaints() as complaints:
            weights = comfy("comfy.utils").load_torch_file(path, safe_load=True)
            result = comfy("comfy.sd").load_lora_for_models(
                model, clip, weights, inputs.strength_model, inputs.strength_clip
            )
        changed = count_text(_added(model.patches, result[0].patches), "weight")
        line = f"{inputs.lora_name} changes {changed} of the model"
        if clip is not None:
            line += f" and {_added(clip.patcher.patches, result[1].patcher.patches)} of the text encoder"
        return reported("LoRA", [f"{line}.", _unused(complaints.names, facts.tensors)], result)


def _path(kind: str, name: str) -> str:
    return comfy("folder_paths").get_full_path_or_raise(kind, name)


class ROCmDiffusionLoader(ROCMOptimizedUNetLoader):
    """The same loader under the id that later workflows of its authors have."""

    DESCRIPTION = "ROCm UNet Loader under an older id. Use that node in new workflows."
    DEPRECATED = True


def check_packages(*names: str) -> None:
    needed = {name: FRAMEPACK[name] for name in names}
    versions = {name: version_of(name) for name in names}
    if problem := package_problem(versions, needed):
        raise InputError(
            f"GGUF files cannot be read with ComfyUI's Python: {problem}.",
            f"Install what is missing: {install_command(versions, needed)}",
        )


def usable(path: Path) -> Inspection:
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
    """Load a file, and report on it. No memory is trimmed before or during a load."""
    needed_bytes = facts.bytes or facts.file_bytes
    free = free_bytes(management().get_torch_device())
    machine, memory_before = device_lines()
    announce(f"Loading {Path(facts.path).name} ({gb_text(needed_bytes)} GB), which may take minutes.")
    with timing() as run:
        result = load()
    lines = [
        _contents(facts),
        f"Its weights take {gb_text(needed_bytes)} GB as stored; {gb_text(free)} GB were free."
        + (
            " They do not fit, so ComfyUI keeps a part of them in main memory." if needed_bytes > free else ""
        ),
        *_quantised_lines(facts),
        machine,
        f"Memory before: {memory_before}. After: {device_lines()[1]}.",
        f"Loaded in {duration(run.seconds)}, {needed_bytes / max(run.seconds, 1e-9) / 1024**3:.2f} GB/s.",
        *_types_in_use(result[0] if result else None),
    ]
    return lines, result


def _contents(facts: Inspection) -> str:
    shares = ", ".join(f"{share:.0%} {name}" for name, share in facts.dtypes.items())
    model = facts.model or "an unknown model"
    num_tensors = count_text(facts.tensors, "tensor")
    return f"{Path(facts.path).name}: {model}, {num_tensors}, {shares or facts.format}."


def _quantised_lines(facts: Inspection) -> list[str]:
    if facts.format == "gguf":
        return [f"The weights stay quantised ({facts.quantised or 'no blocks'}), also under LoRAs."]
    if facts.quantised:
        return [
            f"The weights are quantised ({facts.quantised}) and keep their type. Cards before gfx12 and "
            "CDNA3 have no fp8 arithmetic: fp8 saves memory there, but each layer is converted when it runs."
        ]
    return [f"{hint} The header shows no quantised weights." for hint in facts.hints]


def _types_in_use(model: Any) -> list[str]:
    weight_dtype = model.model_dtype() if hasattr(model, "model_dtype") else None
    compute_dtype = getattr(getattr(model, "model", None), "manual_cast_dtype", None)
    if weight_dtype is None:
        return []
    return [
        f"ComfyUI keeps the weights in {weight_dtype}"
        + (f" and computes in {compute_dtype}." if compute_dtype else ".")
    ]


class _Complaints(logging.Handler):
    """A listener to ComfyUI's log within a context, for the keys that ComfyUI could not use."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.names: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.names += [text.removeprefix(prefix) for prefix in _COMPLAINTS if text.startswith(prefix)]

    def __enter__(self) -> _Complaints:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


def _added(patches_before: Mapping[str, list[Any]], patches_after: Mapping[str, list[Any]]) -> int:
    return sum(len(patches) > len(patches_before.get(name, ())) for name, patches in patches_after.items())


def _unused(names: list[str], total: int) -> str:
    if not names:
        return f"All {total} keys of the file are used."
    examples = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    hint = " The LoRA may be for another model." if len(names) * 2 > total else ""
    return f"{len(names)} of {total} keys of the file fit nothing here: {examples}.{hint}"

"""Captures of the nodes' inputs and outputs, if the environment asks for them, and their replay."""

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

import torch

from diffusers_helper.errors import InputError
from diffusers_helper.output.capture import Comparison, Missing, Recorder, read_capture
from rocm_nodes.host import comfy, free_bytes, management

VARIABLE, FOLDER_VARIABLE = "ROCM_NINODES_DEBUG", "ROCM_NINODES_DEBUG_DIR"


def is_capture_enabled() -> bool:
    return os.environ.get(VARIABLE) == "1"


def with_captures(name: str, node_class: type) -> type:
    function: str = node_class.FUNCTION  # type: ignore[attr-defined]
    method = getattr(node_class, function)

    @functools.wraps(method)
    def call(self: Any, **inputs: Any) -> Any:
        torch_device = management().get_torch_device()
        return Recorder(_folder()).call(
            name,
            lambda: method(self, **inputs),
            inputs=lambda: inputs,
            outputs=_result,
            free_bytes=lambda: free_bytes(torch_device),
        )

    return type(node_class.__name__, (node_class,), {function: call})


def replay(file: Path, objects: dict[str, Path], classes: dict[str, Any]) -> Comparison:
    capture = read_capture(file)
    if capture.name not in classes:
        raise InputError(f"{capture.name} is not a node of this package.", "Choose another capture.")
    inputs = dict(capture.inputs)
    for name, value in inputs.items():
        if isinstance(value, Missing):
            inputs[name] = _load_object(name, value, objects)
    node_class = classes[capture.name]
    with torch.inference_mode():  # as ComfyUI runs its nodes
        return capture.compare(lambda: _result(getattr(node_class(), node_class.FUNCTION)(**inputs)))


def _load_object(name: str, value: Missing, objects: dict[str, Path]) -> Any:
    if name not in objects or name not in ("vae", "model"):
        raise InputError(
            f"The capture does not hold the {name} ({value.kind}).",
            f"Name its file with --{name}, if it has one.",
        )
    path = str(objects[name])
    if not objects[name].is_file():
        raise InputError(f"{path} is not a file.", f"Name the file of the {name} with --{name}.")
    if name == "model":
        return comfy("comfy.sd").load_diffusion_model(path, model_options={})
    return comfy("comfy.sd").VAE(sd=comfy("comfy.utils").load_torch_file(path))


def _folder() -> Path:
    path = os.environ.get(FOLDER_VARIABLE)
    folder = Path(path) if path else Path(comfy("folder_paths").get_output_directory(), "rocm_captures")
    with contextlib.suppress(OSError):  # the capture reports it
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _result(outputs: Any) -> Any:
    return outputs["result"] if isinstance(outputs, dict) and "result" in outputs else outputs

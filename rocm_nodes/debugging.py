"""Captures of the nodes' inputs and outputs, if the environment asks for them, and their replay."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

from diffusers_helper.errors import InputError, first_line
from diffusers_helper.output.capture import MOST_BYTES, Missing, Recorder, difference, read_capture
from rocm_nodes.host import comfy, free_bytes, management

VARIABLE, FOLDER_VARIABLE = "ROCM_NINODES_DEBUG", "ROCM_NINODES_DEBUG_DIR"


def debug_folder() -> Path | None:
    """Return the folder for captures, or None if the environment does not ask for captures.

    By default it is in ComfyUI's output folder, which is known only once a node runs.
    """
    if os.environ.get(VARIABLE) != "1":
        return None
    return Path(os.environ.get(FOLDER_VARIABLE, ""))


def captured(name: str, kind: type) -> type:
    """Return a subclass of a node that also writes a capture of each call."""
    function: str = kind.FUNCTION  # type: ignore[attr-defined]
    plain = getattr(kind, function)

    @functools.wraps(plain)
    def call(self: Any, **inputs: Any) -> Any:
        place = management().get_torch_device()
        before, begin = free_bytes(place), time.perf_counter()

        def write(result: Any) -> None:
            seconds = time.perf_counter() - begin
            memory = {"free_before": before, "free_after": free_bytes(place)}
            Recorder(_folder(), MOST_BYTES).write(name, inputs, result, seconds, memory)

        try:
            outputs = plain(self, **inputs)
        except Exception as error:
            write(_failure(error))
            raise
        write(_result(outputs))
        return outputs

    return type(kind.__name__, (kind,), {function: call, "__doc__": kind.__doc__})


def replay(file: Path, objects: dict[str, Path], classes: dict[str, Any]) -> str:
    """Run a captured node again with the captured inputs, and return a sentence that compares the results.

    Args:
        file: The JSON file of the capture.
        objects: The files of inputs that no capture contains: `vae` and `model`.
        classes: The nodes by id.

    Raises:
        InputError: If an input is missing, or the node is unknown.
    """
    capture = read_capture(file)
    if capture.what not in classes:
        raise InputError(f"{capture.what} is not a node of this package.", "Choose another capture.")
    inputs = dict(capture.inputs)
    for name, value in inputs.items():
        if isinstance(value, Missing):
            inputs[name] = _opened(name, value, objects)
    kind = classes[capture.what]
    begin = time.perf_counter()
    try:
        found = _result(getattr(kind(), kind.FUNCTION)(**inputs))
    except Exception as error:
        if not (isinstance(capture.outputs, dict) and "error" in capture.outputs):
            raise
        found = _failure(error)
    seconds = time.perf_counter() - begin
    different = difference(_listed(found), capture.outputs)
    result = (
        "The results are the same, bit for bit." if not different else f"The results differ: {different}."
    )
    return f"{capture.what}: {seconds:.3g} s; it took {capture.seconds:.3g} s when it was captured. {result}"


def _opened(name: str, value: Missing, objects: dict[str, Path]) -> Any:
    """Return an object of ComfyUI, loaded from the file that the user has named for it."""
    if name not in objects or name not in ("vae", "model"):
        raise InputError(
            f"The capture does not hold the {name} ({value.kind}).",
            f"Name its file with --{name}, if it has one.",
        )
    path = str(objects[name])
    if name == "model":
        return comfy("comfy.sd").load_diffusion_model(path, model_options={})
    return comfy("comfy.sd").VAE(sd=comfy("comfy.utils").load_torch_file(path))


def _folder() -> Path:
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else Path(comfy("folder_paths").get_output_directory(), "rocm_captures")


def _failure(error: Exception) -> dict[str, str]:
    """Return an error in the form in which a capture holds it in place of results."""
    return {"error": f"{type(error).__name__}: {first_line(error)}"}


def _result(outputs: Any) -> Any:
    """Return the outputs for the next nodes, without the report for the page."""
    return outputs["result"] if isinstance(outputs, dict) and "result" in outputs else outputs


def _listed(value: Any) -> Any:
    """Return a value in the form in which a capture holds it, with lists in place of tuples."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {key: _listed(item) for key, item in value.items()} if isinstance(value, dict) else value

"""Captures of calls for debugging: inputs, outputs, time and memory in a JSON and a safetensors file.

A capture consists of two files with the same name. The JSON file contains everything but the tensors; in
their places it has their names in the safetensors file. No pickle is written or read.
"""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffusers_helper.errors import GenerationCancelled, InputError, first_line
from diffusers_helper.files import replacing, write_atomic
from diffusers_helper.memory.accounting import to_host

_log = logging.getLogger(__name__)

FORMAT = 2
MOST_BYTES = 2 * 1024**3
_TENSOR, _OBJECT, _ERROR = "$tensor", "$object", "error"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Captured:
    """A capture that was read.

    Attributes:
        inputs, outputs: Its values; objects that no file can hold are `Missing`.
        seconds: The time that it took.
        memory: The memory figures around the call, in bytes by name.
    """

    what: str
    inputs: dict[str, Any]
    outputs: Any
    seconds: float
    memory: Mapping[str, int]

    def compare(self, work: Callable[[], Any]) -> Comparison:
        """Do the captured work again, and compare its result, or its error where one was captured."""
        begin = time.perf_counter()
        try:
            found = work()
        except Exception as error:
            if not (isinstance(self.outputs, dict) and _ERROR in self.outputs):
                raise
            found = _failure(error)
        return Comparison(self, time.perf_counter() - begin, difference(found, self.outputs))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A captured call beside the same call done again.

    Attributes:
        seconds: The time that the call took now.
        difference: The first difference between the results, in words; "" if they have the same bits.
    """

    capture: Captured
    seconds: float
    difference: str

    def __str__(self) -> str:
        same = "The results are the same, bit for bit."
        result = f"The results differ: {self.difference}." if self.difference else same
        times = f"{self.seconds:.3g} s, {self.capture.seconds:.3g} s when it was captured"
        return f"{self.capture.what}: {times}. {result}"


@dataclass(frozen=True, slots=True)
class Missing:
    """The place of an object that is not in a capture, such as a model; `kind` is the name of its class."""

    kind: str


class Recorder:
    """A writer of captures that keeps the newest ones within a number of bytes."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most = folder, most_bytes

    def call(
        self,
        what: str,
        work: Callable[[], _T],
        *,
        inputs: Callable[[], Mapping[str, Any]],
        outputs: Callable[[_T], Any] = lambda result: result,
        free_bytes: Callable[[], int],
    ) -> _T:
        """Do some work, write a capture of it or of its error, and return its result.

        A capture that cannot be written is left out, which is logged.
        """
        before, begin = free_bytes(), time.perf_counter()

        def write(kept: Any) -> None:
            seconds = time.perf_counter() - begin
            try:
                memory = {"free_before": before, "free_after": free_bytes()}
                self.write(what, inputs(), kept, seconds, memory)
            except OSError as error:
                _log.warning("no capture of %s was written: %s", what, error)

        try:
            result = work()
        except GenerationCancelled:
            raise
        except Exception as error:
            write(_failure(error))
            raise
        write(outputs(result))
        return result

    def write(
        self, what: str, inputs: Mapping[str, Any], outputs: Any, seconds: float, memory: Mapping[str, int]
    ) -> Path:
        """Write one capture, and remove the oldest ones until the limit is kept.

        If its tensors alone exceed the limit, only their shapes are written.

        Returns:
            The JSON file.
        """
        tensors: dict[str, Tensor] = {}
        facts = {
            "format": FORMAT, "what": what, "seconds": seconds, "memory": dict(memory),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "inputs": _plain(dict(inputs), "inputs", tensors),
            "outputs": _plain(outputs, "outputs", tensors),
        }  # fmt: skip
        is_whole = sum(tensor.nbytes for tensor in tensors.values()) <= self._most
        facts["has_tensors"] = is_whole
        folder = self._folder / re.sub(r"[^\w.-]", "_", what)
        self._folder.mkdir(exist_ok=True)
        folder.mkdir(exist_ok=True)
        file = folder / f"{time.time_ns()}.json"
        if is_whole:
            with replacing(file.with_suffix(".safetensors")) as temporary:
                save_file(tensors, temporary)
        write_atomic(file, json.dumps(facts, indent=1).encode() + b"\n")
        self._remove_oldest(file)
        return file

    def _remove_oldest(self, newest: Path) -> None:
        captures = sorted(self._folder.glob("*/*.json"), key=lambda path: path.stem)
        sizes = {path: _size(path) + _size(path.with_suffix(".safetensors")) for path in captures}
        total = sum(sizes.values())
        for path in captures:
            if total <= self._most or path == newest:
                return
            total -= sizes[path]
            path.unlink(missing_ok=True)
            path.with_suffix(".safetensors").unlink(missing_ok=True)


def read_capture(file: Path) -> Captured:
    """Return a capture from its JSON file.

    Raises:
        InputError: If the file is not a capture, or has another version.
    """
    try:
        facts = cast(dict[str, Any], json.loads(file.read_text(encoding="utf-8")))
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}")
        tensors: dict[str, Tensor] = {}
        if facts["has_tensors"]:
            with safe_open(file.with_suffix(".safetensors"), framework="pt") as stored:
                # Kernels may round differently where a tensor begins in the middle of a file's map.
                tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
        inputs, outputs = (_filled(facts[name], tensors) for name in ("inputs", "outputs"))
        return Captured(facts["what"], inputs, outputs, facts["seconds"], facts["memory"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{file} cannot be read ({reason}); expected the JSON file of a capture in format {FORMAT}.",
            "Choose another file.",
        ) from error


def difference(found: Any, expected: Any) -> str:
    """Return a phrase on the first difference of two values, or "" if they are bit-identical."""
    if isinstance(found, Tensor) and isinstance(expected, Tensor):
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return f"{_kind(found)} instead of {_kind(expected)}"
        if torch.equal(_bits(found), _bits(expected)):
            return ""
        most = (found.cpu().double() - expected.cpu().double()).abs().max()
        return f"values that differ by up to {float(most):.3g}"
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return f"{len(found)} values instead of {len(expected)}"
        pairs = enumerate(zip(found, expected, strict=True))
        return next((f"[{n}]: {text}" for n, pair in pairs if (text := difference(*pair))), "")
    if isinstance(found, dict) and isinstance(expected, dict):
        if set(found) != set(expected):
            return f"the names {sorted(found)} instead of {sorted(expected)}"
        return next((f"{n}: {text}" for n in found if (text := difference(found[n], expected[n]))), "")
    if isinstance(expected, Missing):
        return ""
    return "" if found == expected else f"{found!r:.80} instead of {expected!r:.80}"


def _bits(tensor: Tensor) -> Tensor:
    """Return a tensor's bytes, which are equal where both values are not numbers, too."""
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


def _failure(error: Exception) -> dict[str, str]:
    """Return an error as a capture holds it in the place of outputs."""
    return {_ERROR: f"{type(error).__name__}: {first_line(error)}"}


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _plain(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value in a form that JSON can hold, with its tensors moved to `tensors`."""
    if isinstance(value, Tensor):
        tensors[place] = to_host(value.detach()).clone().contiguous()
        return {
            _TENSOR: place,
            "shape": list(value.shape),
            "dtype": str(value.dtype),
            "device": str(value.device),
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}.{n}", tensors) for n, item in enumerate(cast(Any, value))]
    if is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {str(key): _plain(item, f"{place}.{key}", tensors) for key, item in items}
    return {_OBJECT: type(value).__name__}


def _filled(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_filled(item, tensors) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    entries = cast(dict[str, Any], value)
    if _TENSOR in entries:
        return tensors.get(entries[_TENSOR], Missing("Tensor"))
    if _OBJECT in entries:
        return Missing(entries[_OBJECT])
    return {key: _filled(item, tensors) for key, item in entries.items()}

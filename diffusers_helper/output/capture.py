"""Captures of calls for debugging: inputs, outputs, time and memory in a JSON and a safetensors file."""

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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffusers_helper.errors import GenerationCancelled, InputError, first_line
from diffusers_helper.files import replacing, write_atomic
from diffusers_helper.memory.accounting import to_host

_log = logging.getLogger(__name__)

FORMAT = 3
MOST_BYTES = 2 * 1024**3
_TENSOR, _OBJECT, _ERROR = "$tensor", "$object", "error"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Missing:
    """What stands for an object that is not in a capture, such as a model, by the name of its class."""

    kind: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A captured stage or node beside the same call now; `difference` is "" for the same bits."""

    name: str
    seconds: float
    earlier_seconds: float
    difference: str

    def __str__(self) -> str:
        same = "The results are the same, bit for bit."
        result = f"The results differ: {self.difference}." if self.difference else same
        times = f"{self.seconds:.3g} s, {self.earlier_seconds:.3g} s when it was captured"
        return f"{self.name}: {times}. {result}"


@dataclass(frozen=True, slots=True)
class Captured:
    name: str
    inputs: dict[str, Any]
    outputs: Any
    seconds: float
    memory: Mapping[str, int]
    has_tensors: bool

    def compare(self, work: Callable[[], Any]) -> "Comparison":
        begin = time.perf_counter()
        try:
            result = work()
        except Exception as error:
            if not (isinstance(self.outputs, dict) and _ERROR in self.outputs):
                raise
            result = _failure(error)
        seconds = time.perf_counter() - begin
        return Comparison(self.name, seconds, self.seconds, difference(result, self.outputs))


@dataclass(frozen=True, slots=True)
class Recorder:
    folder: Path
    only_failures: bool = False
    most_bytes: int = MOST_BYTES

    def call(
        self, name: str, work: Callable[[], _T], *, inputs: Callable[[], Mapping[str, Any]],
        free_bytes: Callable[[], int], outputs: Callable[[_T], Any] = lambda result: result,
    ) -> _T:  # fmt: skip
        free_before = free_bytes()
        begin = time.perf_counter()

        def write(content: Any) -> None:
            seconds = time.perf_counter() - begin
            try:
                memory = {"free_before": free_before, "free_after": free_bytes()}
                self.write(name, inputs(), content, seconds, memory)
            except (OSError, RuntimeError, MemoryError) as error:  # such as of a device that is lost
                _log.warning("no capture of %s was written: %s", name, error)

        try:
            result = work()
        except GenerationCancelled:
            raise
        except Exception as error:
            write(_failure(error))
            raise
        if not self.only_failures:
            write(outputs(result))
        return result

    def write(
        self, name: str, inputs: Mapping[str, Any], outputs: Any, seconds: float, memory: Mapping[str, int]
    ) -> Path:
        tensors: dict[str, Tensor] = {}
        facts = {
            "format": FORMAT, "what": name, "seconds": seconds, "memory": dict(memory),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "inputs": _without_tensors(dict(inputs), "inputs", tensors),
            "outputs": _without_tensors(outputs, "outputs", tensors),
        }  # fmt: skip
        facts["has_tensors"] = sum(tensor.nbytes for tensor in tensors.values()) <= self.most_bytes
        self.folder.mkdir(exist_ok=True)
        folder = self.folder / re.sub(r"[^\w.-]", "_", name)
        folder.mkdir(exist_ok=True)
        file = folder / f"{time.time_ns()}.json"
        if facts["has_tensors"]:
            with replacing(file.with_suffix(".safetensors")) as temporary:
                save_file(tensors, temporary)
        write_atomic(file, json.dumps(facts, indent=1).encode() + b"\n")
        self._remove_oldest(file)
        return file

    def _remove_oldest(self, newest: Path) -> None:
        sizes = {path: path.stat().st_size for path in self.folder.glob("*/*")}
        total = sum(sizes.values())
        for path in sorted(sizes, key=lambda path: (path.stem, path.suffix != ".safetensors")):
            if total <= self.most_bytes or path.stem == newest.stem:
                return
            path.unlink(missing_ok=True)
            total -= sizes[path]


def read_capture(file: Path) -> Captured:
    tensors: dict[str, Tensor] = {}
    tensor_file = file.with_suffix(".safetensors")

    def restored(entry: dict[str, Any]) -> Any:
        if _TENSOR in entry:
            return tensors.get(entry[_TENSOR], Missing("Tensor"))
        return Missing(entry[_OBJECT]) if _OBJECT in entry else entry

    try:
        if tensor_file.exists():
            with safe_open(tensor_file, framework="pt") as stored:
                # Kernels may round differently where a tensor begins in the middle of a file's map.
                tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
        facts = cast(dict[str, Any], json.loads(file.read_text(encoding="utf-8"), object_hook=restored))
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}")
        has_tensors = facts["has_tensors"] and tensor_file.exists()
        return Captured(
            facts["what"], facts["inputs"], facts["outputs"], facts["seconds"], facts["memory"], has_tensors
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{file} cannot be read ({reason}); expected the JSON file of a capture in format {FORMAT}.",
            "Choose another file.",
        ) from error


def difference(result: Any, expected: Any) -> str:
    if isinstance(expected, Missing):
        return ""
    if isinstance(result, list | tuple) and isinstance(expected, list | tuple):
        result, expected = ({f"[{n}]": item for n, item in enumerate(items)} for items in (result, expected))
    if isinstance(result, dict) and isinstance(expected, dict):
        if result.keys() != expected.keys():
            return f"the names {sorted(result)} instead of {sorted(expected)}"
        differences = ((name, difference(result[name], expected[name])) for name in result)
        return next((f"{name}: {words}" for name, words in differences if words), "")
    if not (isinstance(result, Tensor) and isinstance(expected, Tensor)):
        return "" if result == expected else f"{result!r:.80} instead of {expected!r:.80}"
    if result.shape != expected.shape or result.dtype != expected.dtype:
        words = (f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in (result, expected))
        return " instead of ".join(words)
    # The bytes are equal where both values are not numbers, too.
    first, second = (tensor.cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (result, expected))
    if torch.equal(first, second):
        return ""
    most = (result.cpu().double() - expected.cpu().double()).abs().max()
    return f"values that differ by up to {float(most):.3g}"


def _failure(error: Exception) -> dict[str, str]:
    return {_ERROR: f"{type(error).__name__}: {first_line(error)}"}


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = to_host(value.detach()).clone().contiguous()
        facts = {"shape": list(value.shape), "dtype": str(value.dtype), "device": str(value.device)}
        return {_TENSOR: name, **facts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = enumerate(cast(Any, value))
        return [_without_tensors(item, f"{name}.{number}", tensors) for number, item in items]
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        entries = cast(dict[Any, Any], value).items()
        return {str(key): _without_tensors(item, f"{name}.{key}", tensors) for key, item in entries}
    return {_OBJECT: type(value).__name__}

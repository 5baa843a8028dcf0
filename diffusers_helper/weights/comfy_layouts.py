"""How ComfyUI stores the weights of quantised layers: a tensor of JSON beside each, or the file's metadata.

The layouts are those of comfy-kitchen. Those with a scale for each tensor or row say the same as a file
without marks, unless groups of a row's values are rotated ("ConvRot"); the other layouts are packed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

from diffusers_helper.untrusted.limited_json import json_or_none
from diffusers_helper.weights.tensors import TensorInfo

_MARK = ".comfy_quant"
_METADATA = "_quantization_metadata"
_MAX_MARK_BYTES = 4096
_SCALED = re.compile(r"(?:int8|float8_e4m3fn|float8_e5m2)(?:_tensorwise|_rowwise|_scaled)?")
_GROUP_SIZE = 256  # comfy-kitchen's default
_MAX_NAME = 40


def layouts_in(
    stream: BinaryIO, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]
) -> tuple[dict[str, int], str]:
    """Read the size of the groups in which layers' weights are rotated, and the unreadable layouts."""
    rotations, others = dict[str, int](), dict[str, None]()
    for layer, mark in _marks(stream, tensors, metadata):
        layout = str(mark.get("format"))[:_MAX_NAME]
        options = mark | _dict(mark.get("params"))
        size, weight = options.get("convrot_groupsize", _GROUP_SIZE), tensors.get(f"{layer}.weight")
        if not _SCALED.fullmatch(layout):
            others[layout] = None
        elif options.get("convrot") and weight and _is_group_size(size, weight.shape):
            rotations[layer] = size
        elif options.get("convrot"):
            others[f"{layout} rotated in groups of {str(size)[:_MAX_NAME]}"] = None
    return rotations, ", ".join(others)


def _is_group_size(size: object, shape: tuple[int, ...]) -> bool:
    is_power_of_4 = isinstance(size, int) and size >= 4 and size.bit_count() == 1 == size.bit_length() % 2
    return is_power_of_4 and len(shape) == 2 and shape[1] % cast(int, size) == 0


def _dict(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _marks(
    stream: BinaryIO, tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, mark in _dict(_dict(json_or_none(metadata.get(_METADATA))).get("layers")).items():
        # Some programs write the names without the prefix that the tensors have.
        weight = f"{name}.weight"
        weights = [weight] if weight in tensors else [key for key in tensors if key.endswith(f".{weight}")]
        for key in weights:
            yield key.removesuffix(".weight"), _dict(mark) or {"format": mark}
    for name, tensor in tensors.items():
        if name.endswith(_MARK):
            stream.seek(tensor.offset)
            text = stream.read(min(tensor.num_bytes, _MAX_MARK_BYTES)).decode("utf-8", "replace")
            yield name.removesuffix(_MARK), _dict(json_or_none(text))

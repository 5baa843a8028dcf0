"""Files that become parts of a model of one's own: their checks, and copies of weights in another type.

A copy has its weights as they would be on the device, in a folder of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffusers_helper import __version__
from diffusers_helper.conditions.prompts import check_encoders
from diffusers_helper.errors import InputError, LongtakeError, first_line
from diffusers_helper.files import sha256_of, sync_folder, write_atomic
from diffusers_helper.loading.casting import EIGHT_BIT, SCALE, WEIGHT_DTYPES, cast_weights, layer_types
from diffusers_helper.loading.keys import is_llama_cpp
from diffusers_helper.loading.networks import check_fit, check_network, config_of, load_network
from diffusers_helper.machine.file_locks import locked_folder
from diffusers_helper.memory.weights import Weight, row_scales, weights_of
from diffusers_helper.models.added import AddedPart
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.strangers.limited_json import read_json
from diffusers_helper.units import gb_text
from diffusers_helper.weights.inspection import Inspection, inspect_checkpoint, weights_at
from diffusers_helper.weights.reading import read_contents, weight_files
from diffusers_helper.weights.safetensors_file import NO_SUM, Origin, copy_sum, files_of_origin, make_header

COPY_NAME = "diffusion_pytorch_model.safetensors"
_CONFIG = "config.json"
# So often the data are sent to the disk that the progress is that of the disk, and few pages wait for it.
_SYNC_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class _Stored:
    """A network whose weights are to be copied.

    Attributes:
        weights: The weights by name, in the types that they would have on the device.
    """

    weights: Mapping[str, Weight]
    new_scales: Mapping[str, str]
    config: Mapping[str, Any]
    origin: Origin

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the type and shape of each tensor of the copy, by its name."""
        found = {
            name: (str(weight.dtype).removeprefix("torch."), tuple(weight.host.shape))
            for name, weight in self.weights.items()
        }
        return found | {
            scale: ("float32", (self.weights[name].host.shape[0], 1))
            for name, scale in self.new_scales.items()
        }

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor of the copy by its name; only one of them is in memory at a time."""
        for name, weight in self.weights.items():
            scale = self.new_scales.get(name)
            if scale is not None:
                scales = row_scales(weight.host)
                yield scale, scales
                weight = Weight(weight.tensor, weight.host, weight.dtype, scales)
            copy = torch.empty(weight.host.shape, dtype=weight.dtype)
            weight.copy_to(copy)
            yield name, copy


def copy_weights(
    part: str,
    place: Path,
    config: Mapping[str, Any] | None,
    target: Path,
    *,
    model: str,
    weight_dtype: str,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a network's weights in another type to a new folder in diffusers' layout, tensor by tensor.

    The folder gets its name when it is complete. If the function fails or is interrupted, nothing is left.

    Args:
        config: The configuration for a single file; None for a folder, which holds it.
        target: The folder, which does not exist yet or is empty.
        weight_dtype: The type (`request.WEIGHT_TYPES`).
        on_bytes: A function that is called with the bytes written so far and the total.

    Raises:
        InputError, LongtakeError: If they cannot be converted, no room is left, or another program writes it.
        OSError: If a file cannot be read or written.
        ValueError: If the files do not hold this network.
    """
    source = _source(part, place, config, model, weight_dtype)
    text = json.dumps(dict(source.config), indent=2).encode()

    def header_with(checksum: str) -> tuple[bytes, dict[str, int], int]:
        """Return the header and places, which have the same size and are the same for each checksum."""
        origin = replace(source.origin, sums=((_CONFIG, sha256_of([text])), (COPY_NAME, checksum)))
        return make_header(source.tensors(), origin.metadata())

    header, places, size = header_with(NO_SUM)
    sums: dict[int, str] = {}
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_room(target.parent, size)
    with _new_folder(target) as folder:
        with (folder / COPY_NAME).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            done, synced = len(header), 0
            for name, tensor in source.values():
                data = tensor.contiguous().flatten().view(torch.uint8).numpy().data
                if data:
                    sums[places[name]] = sha256_of([data])
                file.seek(places[name])
                done += file.write(data)
                if done - synced >= _SYNC_BYTES:
                    os.fdatasync(file.fileno())
                    synced = done
                on_bytes(done, size)
            file.seek(0)
            file.write(header_with(copy_sum(header, sums))[0])
            file.flush()
            os.fsync(file.fileno())
        write_atomic(folder / _CONFIG, text)


def _source(
    part: str, place: Path, config: Mapping[str, Any] | None, model: str, weight_dtype: str
) -> _Stored:
    wanted = WEIGHT_DTYPES[weight_dtype]
    with torch.inference_mode(False):
        loaded = load_network(part, place, config)
    if loaded.is_scaled:
        raise InputError(
            f"The {part} of {model} is stored in GGUF or with scales, which cannot be converted.",
            "Convert the weights in 16 bit that it was made from.",
            setting="model",
        )
    network, whole = loaded.network, None if wanted in EIGHT_BIT else wanted
    compute = whole or loaded.dtype
    cast_weights(network, compute, whole)
    names = {id(tensor): name for name, tensor in (*network.named_parameters(), *network.named_buffers())}
    weights = {names[id(weight.tensor)]: weight for weight in weights_of(network, whole)}
    new_scales: dict[str, str] = {}
    for layer, module, dtype in layer_types(network, wanted):
        name, weight = f"{layer}.weight", weights[f"{layer}.weight"]
        weights[name] = Weight(weight.tensor, weight.host, dtype)
        if dtype == torch.int8 != module.weight.dtype:
            new_scales[name] = f"{layer}.{SCALE}"
    if all(weight.dtype == weight.host.dtype for weight in weights.values()):
        raise InputError(
            f"The {part} of {model} is already stored in {weight_dtype}.",
            "Use it as it is, or choose another type.",
            setting="weight_dtype",
        )
    origin = Origin(
        model, files_of_origin(weight_files(place)), weight_dtype,
        str(compute).removeprefix("torch."), __version__,
    )  # fmt: skip
    return _Stored(weights, new_scales, config_of(part, place, config), origin)


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size >= free:
        raise InputError(
            f"The copy needs {gb_text(size)} GB, and {gb_text(free)} GB are free in {folder}.",
            "Free space there, or give a folder on a larger disk with --output.",
        )


@contextmanager
def _new_folder(target: Path) -> Generator[Path]:
    """Yield a folder that gets its name if the block ends without an exception, and else is removed."""
    folder = target.with_name(f".{target.name}.part")
    folder.mkdir(exist_ok=True)
    with ExitStack() as on_exit:
        try:
            on_exit.enter_context(locked_folder(folder, waits=False))
        except BlockingIOError as error:
            raise LongtakeError(
                f"Another program is writing {target}.", "Wait until it has finished."
            ) from error
        on_exit.callback(shutil.rmtree, folder, ignore_errors=True)
        for file in folder.iterdir():  # of a program that was killed
            file.unlink()
        yield folder
        sync_folder(folder)
        folder.rename(target)
        sync_folder(target.parent)


_REMEDY = "Nothing was added."
_OTHER_BASE = "Nothing was added. If the file fits another model than {base}, name that one as the base."
_IN_GGUF = ("transformer", "text_encoder")
# Conversions by llama.cpp may lack the last rows of the embedding, which are reserved and stand for no text.
_MOST_RESERVED = 64


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A file or folder that can be a part of a model, and the facts about it."""

    part: AddedPart
    facts: Inspection

    @property
    def words(self) -> str:
        """Return the facts as the end of a line."""
        facts = self.facts
        return f"{facts.model}, {gb_text(facts.file_bytes)} GB, {facts.kinds}, from {self.part.path}"


def find_part_of_own(part: str, path: Path, base: ModelInfo) -> FoundPart:
    """Check by headers, names and shapes that a file or folder can be a part of a model. No tensor is read.

    Args:
        part: The name of the part, one of those with weights.
        path: A single file with weights, or a folder in diffusers' layout.
        base: The model whose other parts are used, with the configuration for a single file.

    Raises:
        InputError: If it cannot be that part, in one sentence with the name of the file.
    """
    path = weights_at(path.absolute())
    try:
        facts = inspect_checkpoint(path, part)
        # The names in a GGUF file with another network are not known, so its problems would mislead.
        if facts.format == "gguf" and part not in _IN_GGUF:
            raise _refusal(
                part,
                f"{path.name} is a GGUF file, which can only be the {' or the '.join(_IN_GGUF)}; the "
                f"{part} is small, and is taken as safetensors.",
            )
        for problem in facts.problems:
            raise _refusal(part, problem)
        config = None if path.is_dir() else _config(part, base) | _fewer_words(part, path, base)
        if config is None:
            _check_layers(config_of(part, path, None), facts.tensors)
        check_network(part, path, config)
    except InputError:
        raise
    except OSError as error:
        raise _refusal(part, f"{path} cannot be read ({error.strerror or first_line(error)}).") from error
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        remedy = _REMEDY if path.is_dir() else _OTHER_BASE.format(base=base.name)
        raise _refusal(part, f"{first_line(error).rstrip('.')}.", remedy) from error
    return FoundPart(AddedPart(str(path), config), facts)


def check_parts(name: str, parts: Mapping[str, FoundPart], base: ModelInfo) -> None:
    """Check by their configurations that the parts of a new model were made for each other.

    Raises:
        InputError: If they were not.
    """
    configs = {
        part: config_of(part, Path(own.part.path), own.part.config) if own else _config(part, base)
        for part, own in ((part, parts.get(part)) for part in base.family.networks)
    }
    check_fit(replace(base, name=name), lambda part, key: configs[part].get(key))
    check_encoders(name, base.parts, configs)


def _check_layers(config: Mapping[str, Any], tensors: int) -> None:
    """Refuse a folder's configuration with more layers than tensors, before such a network is built."""
    for name, value in config.items():
        if "layers" in name and isinstance(value, int) and value > tensors:
            raise ValueError(f"its config has {value} {name}; expected at most {tensors}, one per tensor")


def _refusal(part: str, problem: str, remedy: str = _REMEDY) -> InputError:
    return InputError(f"The {part} cannot be used: {problem}", remedy, setting="model")


def _fewer_words(part: str, path: Path, base: ModelInfo) -> dict[str, Any]:
    """Return what differs in the configuration of a text encoder of llama.cpp that lacks reserved rows."""
    tensors = read_contents(path).tensors if part == "text_encoder" else {}
    if not is_llama_cpp(tensors):
        return {}
    rows = tensors["token_embd.weight"].shape[0]
    lacking = int(_config(part, base)["vocab_size"]) - rows
    return {"vocab_size": rows} if 0 < lacking <= _MOST_RESERVED else {}


def _config(part: str, base: ModelInfo) -> dict[str, Any]:
    """Return the configuration of the part that a single file replaces."""
    source = base.parts[part]
    if source.config is not None:
        return dict(source.config)
    file = source.folder / "config.json"
    if file.is_file():
        return read_json(file)
    return dict(base.family.networks[part].config)

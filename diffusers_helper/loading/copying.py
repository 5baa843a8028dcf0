"""Files that become components of a user's model: their checks, and copies of weights in another type."""

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
from diffusers_helper.errors import InputError, LongtakeError, first_line
from diffusers_helper.files import sha256_of, sync_folder, write_atomic
from diffusers_helper.loading.casting import EIGHT_BIT, SCALE, WEIGHT_DTYPES, cast_weights, layer_types
from diffusers_helper.loading.keys import is_llama_cpp
from diffusers_helper.loading.networks import check_fit, check_network, config_of, load_network
from diffusers_helper.machine.file_locks import locked_folder
from diffusers_helper.memory.weights import Weight, row_scales, weights_of
from diffusers_helper.models.added import AddedComponent
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.units import gb_text
from diffusers_helper.untrusted.limited_json import read_json
from diffusers_helper.weights.inspection import Inspection, inspect_checkpoint, weights_at
from diffusers_helper.weights.reading import read_contents, weight_files
from diffusers_helper.weights.safetensors_file import NO_SUM, Origin, copy_sum, files_of_origin, make_header

COPY_NAME = "diffusion_pytorch_model.safetensors"
_CONFIG = "config.json"
# The data are sent to the disk after so many bytes, so that the progress is that of the disk.
_SYNC_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class _StoredNetwork:
    weights: Mapping[str, Weight]
    new_scales: Mapping[str, str]
    config: Mapping[str, Any]
    origin: Origin

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        weights = {
            name: (str(weight.dtype).removeprefix("torch."), tuple(weight.host.shape))
            for name, weight in self.weights.items()
        }
        return weights | {
            scale: ("float32", (self.weights[name].host.shape[0], 1))
            for name, scale in self.new_scales.items()
        }

    def values(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.weights.items():
            scale_name = self.new_scales.get(name)
            if scale_name is not None:
                scales = row_scales(weight.host)
                yield scale_name, scales
                weight = Weight(weight.tensor, weight.host, weight.dtype, scales)
            copy = torch.empty(weight.host.shape, dtype=weight.dtype)
            weight.copy_to(copy)
            yield name, copy


def copy_weights(
    component: str,
    path: Path,
    config: Mapping[str, Any] | None,
    target: Path,
    *,
    model: str,
    weight_dtype: str,
    on_bytes: Callable[[int, int], None] = lambda written_bytes, total: None,
) -> None:
    """Write a network's weights in another type to a new folder in diffusers' layout, tensor by tensor.

    The folder gets its name when it is complete. If the function fails or is interrupted, nothing is left.
    `config` is None for a folder, which holds it.
    """
    source = _source(component, path, config, model, weight_dtype)
    text = json.dumps(dict(source.config), indent=2).encode()

    def header_with(checksum: str) -> tuple[bytes, dict[str, int], int]:
        """Make the header and the offsets, which have the same size and are the same for each checksum."""
        origin = replace(source.origin, sums=((_CONFIG, sha256_of([text])), (COPY_NAME, checksum)))
        return make_header(source.tensors(), origin.metadata())

    header, offsets, file_bytes = header_with(NO_SUM)
    sums: dict[int, str] = {}
    target.parent.mkdir(parents=True, exist_ok=True)
    if file_bytes >= (free_bytes := shutil.disk_usage(target.parent).free):
        raise InputError(
            f"The copy needs {gb_text(file_bytes)} GB, and {gb_text(free_bytes)} GB are free in "
            f"{target.parent}.",
            "Free space there, or give a folder on a larger disk with --output.",
        )
    with _new_folder(target) as folder:
        with (folder / COPY_NAME).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, file_bytes)
            done = len(header)
            synced_bytes = 0
            for name, tensor in source.values():
                data = tensor.contiguous().flatten().view(torch.uint8).numpy().data
                if data:
                    sums[offsets[name]] = sha256_of([data])
                file.seek(offsets[name])
                done += file.write(data)
                if done - synced_bytes >= _SYNC_BYTES:
                    os.fdatasync(file.fileno())
                    synced_bytes = done
                on_bytes(done, file_bytes)
            file.seek(0)
            file.write(header_with(copy_sum(header, sums))[0])
            file.flush()
            os.fsync(file.fileno())
        write_atomic(folder / _CONFIG, text)


def _source(
    component: str, path: Path, config: Mapping[str, Any] | None, model: str, weight_dtype: str
) -> _StoredNetwork:
    storage_dtype = WEIGHT_DTYPES[weight_dtype]
    with torch.inference_mode(False):
        loaded_network = load_network(component, path, config)
    if loaded_network.is_scaled:
        raise InputError(
            f"The {component} of {model} is stored in GGUF or with scales, which cannot be converted.",
            "Convert the weights in 16 bit that it was made from.",
            setting="model",
        )
    network = loaded_network.network
    plain_dtype = None if storage_dtype in EIGHT_BIT else storage_dtype
    compute_dtype = plain_dtype or loaded_network.dtype
    cast_weights(network, compute_dtype, plain_dtype)
    names = {id(tensor): name for name, tensor in (*network.named_parameters(), *network.named_buffers())}
    weights = {names[id(weight.tensor)]: weight for weight in weights_of(network, plain_dtype)}
    new_scales: dict[str, str] = {}
    for layer, module, dtype in layer_types(network, storage_dtype):
        name = f"{layer}.weight"
        weight = weights[f"{layer}.weight"]
        weights[name] = Weight(weight.tensor, weight.host, dtype)
        if dtype == torch.int8 != module.weight.dtype:
            new_scales[name] = f"{layer}.{SCALE}"
    if all(weight.dtype == weight.host.dtype for weight in weights.values()):
        raise InputError(
            f"The {component} of {model} is already stored in {weight_dtype}.",
            "Use it as it is, or choose another type.",
            setting="weight_dtype",
        )
    origin = Origin(
        model, files_of_origin(weight_files(path)), weight_dtype,
        str(compute_dtype).removeprefix("torch."), __version__,
    )  # fmt: skip
    return _StoredNetwork(weights, new_scales, config_of(component, path, config), origin)


@contextmanager
def _new_folder(target: Path) -> Generator[Path]:
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
_MAX_RESERVED_ROWS = 64


@dataclass(frozen=True, slots=True)
class OwnComponent:
    component: AddedComponent
    facts: Inspection

    @property
    def summary(self) -> str:
        facts = self.facts
        return f"{facts.model}, {gb_text(facts.file_bytes)} GB, {facts.types}, from {self.component.path}"


def find_own_component(component: str, path: Path, base: ModelInfo) -> OwnComponent:
    """Check by headers, names and shapes that a file or folder can be a component, or raise InputError."""
    path = weights_at(path.absolute())
    try:
        facts = inspect_checkpoint(path, component)
        # The names in a GGUF file with another network are unknown, so its problems would mislead.
        if facts.format == "gguf" and component not in _IN_GGUF:
            raise _refusal(
                component,
                f"{path.name} is a GGUF file, which can only be the {' or the '.join(_IN_GGUF)}; the "
                f"{component} is small, and is taken as safetensors.",
            )
        for problem in facts.problems:
            raise _refusal(component, problem)
        config = (
            None if path.is_dir() else _config(component, base) | _vocabulary_change(component, path, base)
        )
        check_network(component, path, config)
    except InputError:
        raise
    except OSError as error:
        raise _refusal(
            component, f"{path} cannot be read ({error.strerror or first_line(error)})."
        ) from error
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        remedy = _REMEDY if path.is_dir() else _OTHER_BASE.format(base=base.name)
        raise _refusal(component, f"{first_line(error).rstrip('.')}.", remedy) from error
    return OwnComponent(AddedComponent(str(path), config), facts)


def check_components(name: str, components: Mapping[str, OwnComponent], base: ModelInfo) -> None:
    configs = {
        component: config_of(component, Path(own_component.component.path), own_component.component.config)
        if (own_component := components.get(component))
        else _config(component, base)
        for component in base.family.networks
    }
    check_fit(replace(base, name=name), lambda component, key: configs[component].get(key))


def _refusal(component: str, problem: str, remedy: str = _REMEDY) -> InputError:
    return InputError(f"The {component} cannot be used: {problem}", remedy, setting="model")


def _vocabulary_change(component: str, path: Path, base: ModelInfo) -> dict[str, Any]:
    """Make the change to the configuration of llama.cpp's text encoder, if it lacks reserved rows."""
    tensors = read_contents(path).tensors if component == "text_encoder" else {}
    if not is_llama_cpp(tensors):
        return {}
    num_rows = tensors["token_embd.weight"].shape[0]
    num_missing = int(_config(component, base)["vocab_size"]) - num_rows
    return {"vocab_size": num_rows} if 0 < num_missing <= _MAX_RESERVED_ROWS else {}


def _config(component: str, base: ModelInfo) -> dict[str, Any]:
    source = base.components[component]
    if source.config is not None:
        return dict(source.config)
    file = source.folder / "config.json"
    if file.is_file():
        return read_json(file)
    return dict(base.family.networks[component].config)

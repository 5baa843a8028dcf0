"""The checks of files that become parts of a model of one's own, and the place of each of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diffusers_helper.conditions.prompts import check_encoders
from diffusers_helper.errors import InputError, first_line
from diffusers_helper.loading.llama_cpp import is_llama_cpp
from diffusers_helper.loading.networks import check_fit, check_network, config_of
from diffusers_helper.models.added import AddedPart
from diffusers_helper.models.hub_cache import part_folder
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.strangers.limited_json import read_json
from diffusers_helper.units import gb_text
from diffusers_helper.weights.inspection import Inspection, inspect_checkpoint, weights_at
from diffusers_helper.weights.reading import read_contents

_REMEDY = "Nothing was added."
_OTHER_BASE = "Nothing was added. If the file fits another model than {base}, name that one as the base."
_IN_GGUF = ("transformer", "text_encoder")
# Conversions by llama.cpp may lack the last rows of the embedding, which are reserved and stand for no text.
_MOST_RESERVED = 64


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A file or folder that can be a part of a model.

    Attributes:
        path: Its absolute path.
        config: The configuration of the network in a single file; None for a folder, which holds it.
    """

    path: str
    config: Mapping[str, Any] | None
    facts: Inspection

    @property
    def words(self) -> str:
        """Return the facts as the end of a line."""
        facts = self.facts
        return f"{facts.model}, {gb_text(facts.file_bytes)} GB, {facts.kinds}, from {self.path}"

    @property
    def part(self) -> AddedPart:
        return AddedPart(self.path, self.config)


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
    return FoundPart(str(path), config, facts)


def check_parts(name: str, parts: Mapping[str, FoundPart], base: ModelInfo) -> None:
    """Check by their configurations that the parts of a new model were made for each other.

    Raises:
        InputError: If they were not.
    """
    configs = {
        part: config_of(part, Path(parts[part].path), parts[part].config)
        if part in parts
        else _config(part, base)
        for part in base.family.networks
    }
    check_fit(replace(base, name=name), lambda part, key: configs[part].get(key))
    check_encoders(name, base.parts, lambda part: configs.get(part, {}))


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
    file = part_folder(source) / "config.json"
    if file.is_file():
        return read_json(file)
    return dict(base.family.networks[part].config)

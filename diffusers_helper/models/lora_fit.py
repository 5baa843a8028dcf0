"""LoRAs beside a model, by the headers of the files alone: whether they fit it, and the sizes with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from diffusers_helper.models.hub_cache import network_folder
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import Network, block_lists, class_named
from diffusers_helper.strangers.confined import confined
from diffusers_helper.weights.lora_files import LoraFile, Pair, loras_of
from diffusers_helper.weights.safetensors_file import read_safetensors
from diffusers_helper.weights.tensors import NotWeights

_WEIGHT = ".weight"
_LEAST_VALUE_BYTES = 2


def check_loras(text: str, info: ModelInfo) -> None:
    """Check the LoRAs of a request.

    What cannot be judged here is left to the engine: the fit to a model that is not on this machine, or whose
    transformer is stored in another way.

    Args:
        text: The setting `lora`, with paths.

    Raises:
        InputError: If a file is missing, holds no LoRA, or does not fit the model.
    """
    loras = loras_of(text)
    folder = network_folder(info.parts["transformer"]) if loras else None
    layers = layers_of(folder) if folder else {}
    for _, lora in loras:
        lora.check_family(info.name, info.family)
        if layers:
            lora.fitting(layers)


@confined
def layers_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each linear layer in a transformer's files; none for other files."""
    try:
        headers = [read_safetensors(file).tensors for file in folder.glob("*.safetensors")]
    except (OSError, NotWeights):
        return {}
    found = {
        name.removesuffix(_WEIGHT): (entry.shape[0], entry.shape[1])
        for header in headers
        for name, entry in header.items()
        if name.endswith(_WEIGHT) and len(entry.shape) == 2
    }
    return found if "proj_out" in found else {}


def with_loras(network: Network, loras: Collection[LoraFile]) -> Network:
    """Return the transformer with the sizes that it has together with LoRAs.

    Args:
        loras: The LoRAs, as `lora_adapters` attaches them: with two matrices for each layer.
    """
    if not loras:
        return network
    weights, width = network.weights, max(_LEAST_VALUE_BYTES, network.dtype_bytes)
    blocks, total = list(weights.block_bytes), weights.total_bytes
    lists, first = block_lists("transformer", class_named(network.config)), len(blocks)
    if len(lists) > 1:
        first = int(network.config.get("num_layers", first))
    for layer, values in (found for lora in loras for pair in lora.pairs for found in _values(pair)):
        total += values * width
        group, _, rest = layer.partition(".")
        if group in lists:
            place = int(rest.partition(".")[0]) + (first if group in lists[1:] else 0)
            if place < len(blocks):
                blocks[place] += values * width
    return replace(network, weights=replace(weights, total_bytes=total, block_bytes=tuple(blocks)))


def _values(pair: Pair) -> Iterator[tuple[str, int]]:
    """Yield the layers that a change concerns, with the number of values for each."""
    layers = pair.target.layers
    for place, layer in enumerate(layers):
        # How the outputs are divided is not known here; all of them are counted with the first layer.
        outputs = 0 if place else pair.outputs
        yield layer, pair.rank * (pair.inputs + outputs) + (outputs if pair.bias else 0)

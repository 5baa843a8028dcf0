"""The check that LoRAs fit a model, made by the headers of its files before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from diffusers_helper.lora.files import loras_of
from diffusers_helper.models.formats.safetensors_file import read_safetensors
from diffusers_helper.models.formats.tensors import NotWeights
from diffusers_helper.models.hub_cache import network_folder
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.strangers.confined import confined

_WEIGHT = ".weight"


def check_loras(text: str, info: ModelInfo) -> None:
    """Check the LoRAs of a request.

    What cannot be judged here is left to the engine: the fit to a model that is not on this machine, or whose
    transformer is stored in another way.

    Args:
        text: The setting `lora`, with paths.
        info: The request's model.

    Raises:
        InputError: If a file is missing, holds no LoRA for FramePack, or does not fit the model.
    """
    loras = loras_of(text)
    folder = network_folder(info.parts["transformer"]) if loras else None
    layers = layers_of(folder) if folder else {}
    for _, lora in loras if layers else ():
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

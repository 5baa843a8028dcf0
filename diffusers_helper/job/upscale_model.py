"""A person's own network for enlarging, which spandrel recognises, computed by torch."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from diffusers_helper.errors import InputError
from diffusers_helper.finish.step import Network
from diffusers_helper.finish.upscale_models import find_upscale_model
from diffusers_helper.miopen_fallback import MIOpenFallbackHandler


def load_upscale_model(
    folders: Sequence[Path], convolutions: MIOpenFallbackHandler, device: torch.device, weights: str
) -> tuple[Network, int]:
    """Load the network that a word names, and tell how many times it enlarges."""
    path, _ = find_upscale_model(weights, folders)
    spandrel = _spandrel()
    remedy = "Choose another file."
    try:
        model = spandrel.ModelLoader().load_from_file(path)
    except (SafetensorError, spandrel.UnsupportedModelError, RuntimeError, LookupError, ValueError) as error:
        raise InputError(f"spandrel reads no network in {path.name}.", remedy, setting="finish") from error
    if (model.purpose, model.input_channels, model.output_channels) != ("SR", 3, 3):
        raise InputError(f"{path.name} does not enlarge pictures in RGB.", remedy, setting="finish")
    model.to(device).eval()
    convolutions.install(model.model)

    def compute(part: np.ndarray) -> np.ndarray:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # some networks add noise
            return model(torch.from_numpy(part)[None].to(device))[0].cpu().numpy()

    return compute, model.scale


def _spandrel() -> Any:
    """Import spandrel, which takes from torchvision only what its networks for faces and for holes call."""
    absent = list[str]()
    try:
        import_module("torchvision.transforms.functional")
    except (ImportError, OSError, RuntimeError):  # it is missing, or was built for another torch
        absent = ["torchvision", "torchvision.transforms", "torchvision.transforms.functional"]
        sys.modules.update({name: ModuleType(name) for name in absent})
        vars(sys.modules[absent[-1]]).update(dict.fromkeys(["normalize", "rotate", "InterpolationMode"]))
    try:
        return import_module("spandrel")
    finally:
        for name in absent:
            del sys.modules[name]

"""Tiny networks that enlarge, as a person has them in files, and what they compute."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

BT709 = (0.2126, 0.7152, 0.0722)  # a video keeps the brightness of each pixel, but not its colour
needs_spandrel = pytest.mark.skipif(find_spec("spandrel") is None, reason="spandrel is not installed")


def body(scale: int = 2, channels: int = 3, layers: int = 6, seed: int = 1) -> nn.Sequential:
    """Return the layers of a compact network of Real-ESRGAN, which are added to the nearest pixels."""
    sides = [channels, *[8] * (layers + 1)]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        parts = list[nn.Module]()
        for before in sides[:-1]:
            layer = nn.Conv2d(before, 8, 3, 1, 1)
            layer.weight.data *= 2  # so that distant pixels count
            parts += [layer, nn.PReLU(8)]
        return nn.Sequential(*parts, nn.Conv2d(8, channels * scale * scale, 3, 1, 1))


def write_network(file: Path, network: nn.Sequential) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({f"body.{name}": value for name, value in network.state_dict().items()}, file)


def enlarged_by(network: nn.Sequential, frame: np.ndarray, scale: int = 2) -> np.ndarray:
    """Compute what a network with these layers makes of a frame, as channels from 0 to 1."""
    values: Tensor = torch.from_numpy(frame.transpose(2, 0, 1) / np.float32(255))[None]
    with torch.inference_mode():
        detail = functional.pixel_shuffle(network(values), scale)
        return (detail + functional.interpolate(values, scale_factor=scale)).clamp(0, 1)[0].numpy()

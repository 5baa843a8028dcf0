"""The quick list: prompts that work with a model, and pictures for them where the product has some."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from diffusers_helper.registry import ModelInfo

_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "examples"


def example_picture(prompt: str) -> Image.Image | None:
    """The picture made for a prompt: `assets/examples/the-camera-zooms-in.png`."""
    path = _FOLDER / f"{re.sub('[^a-z0-9]+', '-', prompt.lower()).strip('-')}.png"
    return Image.open(path) if path.is_file() else None


def samples_of(info: ModelInfo) -> list[list[str]]:
    """The rows of the page's quick list."""
    return [[prompt] for prompt in info.examples]

"""The page's quick list: prompts that work with a model, and pictures for them where there are some."""

from __future__ import annotations

import base64
import functools
import io
import re
from pathlib import Path

from PIL import Image

from diffusers_helper.models.registry import ModelInfo

_FOLDER = Path(__file__).resolve().parents[3] / "assets" / "examples"
_THUMBNAIL = (192, 192)


def example_file(prompt: str) -> Path | None:
    """Return the file of a prompt's picture, such as `assets/examples/the-camera-zooms-in.png`."""
    path = _FOLDER / f"{re.sub('[^a-z0-9]+', '-', prompt.lower()).strip('-')}.png"
    return path if path.is_file() else None


def example_picture(prompt: str) -> Image.Image | None:
    """Open the picture made for a prompt."""
    path = example_file(prompt)
    return None if path is None else Image.open(path)


@functools.cache
def thumbnail(prompt: str) -> str:
    """Return a prompt's picture, small, as a data address; empty where there is none."""
    picture = example_picture(prompt)
    if picture is None:
        return ""
    with picture:
        small = picture.convert("RGB")
    small.thumbnail(_THUMBNAIL)
    data = io.BytesIO()
    small.save(data, "WEBP", quality=85)
    return f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"


def samples_of(info: ModelInfo) -> list[list[str]]:
    """Return the rows of the page's quick list."""
    return [[prompt] for prompt in info.examples]

"""The page's examples: prompts that work with a model, with pictures and videos if there are any."""

from __future__ import annotations

import base64
import functools
import io
import re
from pathlib import Path

from PIL import Image

_FOLDER = Path(__file__).resolve().parents[3] / "assets" / "examples"


def example_file(prompt: str) -> Path | None:
    """Return the file of a prompt's picture, such as `assets/examples/the-camera-zooms-in.png`."""
    path = _FOLDER / f"{re.sub('[^a-z0-9]+', '-', prompt.lower()).strip('-')}.png"
    return path if path.is_file() else None


@functools.cache
def example_media(prompt: str) -> tuple[str, str]:
    """Return a prompt's picture and the video made from it as data URLs, or "" for both without a picture.

    If there is no video, the picture takes its place.
    """
    picture = example_file(prompt)
    if picture is None:
        return "", ""
    with Image.open(picture) as opened:
        small = opened.convert("RGB")
    data = io.BytesIO()
    small.save(data, "WEBP", quality=85)
    still, card = _address(data.getvalue()), picture.with_suffix(".webp")
    return still, _address(card.read_bytes()) if card.is_file() else still


def _address(webp: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(webp).decode()}"

"""The pictures of the page's examples: drawings whose edges survive 128 pixels, and one photograph."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
_SIDE = 1024  # drawings are made at this size and reduced, which gives smooth edges


def moonrise() -> Image.Image:
    """Draw a full moon over dark hills."""
    picture = _sky((12, 18, 50), (58, 74, 128))
    draw = ImageDraw.Draw(picture)
    for x, y in np.random.default_rng(3).random((40, 2)):
        _ball(draw, x, y * 0.6, 0.004, (230, 230, 250))
    _ball(draw, 0.62, 0.56, 0.12, (245, 245, 240))
    _hills(draw, 0.80, 0.04, 0.9, 1.0, (20, 34, 52))
    _hills(draw, 0.88, 0.03, 0.6, 3.0, (12, 22, 34))
    return picture


def balloon() -> Image.Image:
    """Draw a red ball in the evening sky; red before a bright sky would get a rim from the VAE."""
    picture = _sky((70, 58, 110), (190, 116, 120))
    draw = ImageDraw.Draw(picture)
    _hills(draw, 0.82, 0.03, 0.8, 0.0, (62, 50, 82))
    _hills(draw, 0.90, 0.02, 0.5, 2.0, (40, 34, 60))
    _ball(draw, 0.30, 0.42, 0.16, (214, 48, 44))
    return picture


def _sky(top: Colour, bottom: Colour) -> Image.Image:
    rows = np.linspace(top, bottom, _SIDE).round().astype(np.uint8)
    return Image.fromarray(np.repeat(rows[:, None], _SIDE, axis=1))


def _ball(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, colour: Colour) -> None:
    draw.ellipse([_SIDE * edge for edge in (x - radius, y - radius, x + radius, y + radius)], fill=colour)


def _hills(
    draw: ImageDraw.ImageDraw, level: float, height: float, width: float, phase: float, colour: Colour
) -> None:
    x = np.linspace(0, 1, 200)
    angle = 2 * np.pi * x / width
    y = level + height * (np.sin(angle + phase) + 0.4 * np.sin(2.3 * angle + 2 * phase))
    outline: Sequence[tuple[float, float]] = [*zip(x * _SIDE, y * _SIDE, strict=True)]
    draw.polygon([*outline, (_SIDE, _SIDE), (0, _SIDE)], fill=colour)

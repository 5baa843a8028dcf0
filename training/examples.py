"""Draws the small pictures that go with the example prompts, each named by its prompt."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image

from training.render import Renderer, make_canvases
from training.scenes import COLOURS, STILL, Background, Motion, Scene, Thing

PIXELS = 256
CANVAS_SEED = 8_000_003


def thing(shape: str, colour: str, x: float, y: float, radius: float) -> Thing:
    """A thing in the colour its name says."""
    return Thing(shape, colour, COLOURS[colour], x, y, radius)


def scenes() -> dict[str, Scene]:
    """File name and scene of each example, in the order of the prompts."""
    hills = Background("gradient", ((0.55, 0.75, 0.9), (0.35, 0.55, 0.4)), 1.57, 0.3, 0.0)
    patches = Background("leaves", ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), 0.0, 0.3, 0.0)
    waves = Background("waves", ((0.16, 0.25, 0.42), (0.22, 0.33, 0.52)), 0.4, 0.34, 0.2)
    return {
        "the-red-ball-moves-right": Scene(hills, (thing("ball", "red", -0.26, 0.08, 0.15),), 0.5, 0.5),
        "the-camera-pans-left": Scene(patches, (thing("square", "blue", 0.05, 0.02, 0.13),), 0.5, 0.5),
        "the-yellow-diamond-grows": Scene(
            waves, (thing("diamond", "yellow", -0.08, 0.0, 0.19), thing("ball", "white", 0.3, 0.24, 0.09)),
            0.5, 0.5,
        ),
    }  # fmt: skip


def draw(folder: Path) -> None:
    """Write the pictures as PNG files."""
    renderer = Renderer(make_canvases(CANVAS_SEED, 1))
    folder.mkdir(parents=True, exist_ok=True)
    for name, scene in scenes().items():
        pixels = renderer.clip(scene, Motion(STILL), [0], (PIXELS, PIXELS))[:, 0]
        image = (pixels + 1).mul(127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
        Image.fromarray(image).save(folder / f"{name}.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("assets/examples"), help="where to write them")
    draw(parser.parse_args().folder)


if __name__ == "__main__":
    main()

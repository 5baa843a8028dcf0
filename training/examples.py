"""The program that makes the examples: pictures with prompts, and animations for page and documents."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

import imageio.v3 as imageio
import torch
from PIL import Image
from torch.nn import functional as F

from training.pictures import balloon, moonrise
from training.product_engine import ProductEngine
from training.render import Renderer, make_canvases
from training.scenes import COLOURS, STILL, Background, Drawing, Motion, Thing
from training.sheet import to_image

PIXELS, SMALL = 256, 192
CANVAS_SEED = 8_000_003
# An animation shows every third frame, ten per second, and thus has the speed of the video. The page's
# animations show every second frame.
EVERY, MILLISECONDS = 3, 100
PAGE_EVERY, PAGE_MILLISECONDS, PAGE_QUALITY = 2, 67, 75


def thing(shape: str, colour: str, x: float, y: float, radius: float) -> Thing:
    """Return a thing in the named colour."""
    return Thing(shape, colour, COLOURS[colour], x, y, radius)


@dataclass(frozen=True)
class Example:
    """A picture and its prompt, with the order and the number of the video's sections."""

    prompt: str
    background: Background
    things: tuple[Thing, ...]
    mode: str = "inverted"
    sections: int = 2
    seed: int = 1

    def picture(self, renderer: Renderer, pixels: int) -> torch.Tensor:
        """Return the picture (3, pixels, pixels) in -1..1."""
        scene = Drawing(self.background, self.things, 0.5, 0.5)
        return renderer.clip(scene, Motion(STILL), [0], (pixels, pixels))[:, 0]


PATCHES = Background("leaves", ((0.5, 0.5, 0.5),) * 2, 0.0, 0.3, 0.0)
SAND = Background("radial", ((0.85, 0.78, 0.62), (0.95, 0.92, 0.85)), 0.0, 0.3, 0.1)
STRIPES = Background("stripes", ((0.75, 0.82, 0.85), (0.85, 0.9, 0.92)), 0.7, 0.3, 0.0)
# They are in the documents, the first one in the README.
EXAMPLES = (
    Example("the camera pans left", PATCHES, (thing("square", "blue", 0.05, 0.02, 0.16),)),
    Example("the camera pans up", PATCHES, (thing("ball", "white", 0.1, -0.1, 0.15),), "forward"),
    Example("the green ball moves down", SAND, (thing("ball", "green", 0.1, -0.24, 0.2),), "forward", 1),
    Example(
        "the camera zooms out", STRIPES, (thing("triangle", "blue", 0.0, 0.05, 0.22),), sections=1, seed=2
    ),
)
# The page's examples, by prompt. The last one is a photograph, which stays as it is in the folder.
DRAWN = {"the white ball moves up": moonrise, "the red ball moves right": balloon}
ON_PAGE = (*DRAWN, "the camera zooms in slowly")


def file_name(prompt: str) -> str:
    """Return the name of an example's files without its ending, made of the prompt's words."""
    return re.sub("[^a-z0-9]+", "-", prompt)


def draw(folder: Path) -> None:
    """Write the drawings of the page's examples as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for prompt, drawing in DRAWN.items():
        picture = drawing().resize((PIXELS, PIXELS), Image.Resampling.LANCZOS)
        picture.save(folder / f"{file_name(prompt)}.png", optimize=True)


def save_animation(path: Path, video: torch.Tensor, pixels: int) -> None:
    """Write a video (3, T, H, W) in -1..1 as a GIF with one palette for all frames."""
    frames = video[:, ::EVERY].transpose(0, 1)
    large = F.interpolate(frames, (pixels, pixels), mode="bicubic", antialias=True)
    images = [to_image(frame) for frame in large]
    strip = Image.new("RGB", (pixels, pixels * 3))
    for row, image in enumerate((images[0], images[len(images) // 2], images[-1])):
        strip.paste(image, (0, row * pixels))
    palette = strip.quantize(256)
    made = [image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG) for image in images]
    made[0].save(path, save_all=True, append_images=made[1:], duration=MILLISECONDS, loop=0, optimize=True)


def film(folder: Path, model: Path) -> None:
    """Make the videos of the page's examples with a model folder, and write them as WebP animations."""
    engine = ProductEngine(model, None)
    for prompt in ON_PAGE:
        (path,) = (path for path in folder.glob(f"{file_name(prompt)}.*") if path.suffix != ".webp")
        pixels = torch.from_numpy(imageio.imread(path)[..., :3].copy())
        picture = pixels.permute(2, 0, 1).float() / 127.5 - 1
        video = engine.make(picture, prompt, "inverted", sections=2, seed=1)
        frames = [to_image(frame) for frame in video[:, ::PAGE_EVERY].transpose(0, 1)]
        imageio.imwrite(
            path.with_suffix(".webp"), frames, plugin="pillow", loop=0, method=6,
            duration=PAGE_MILLISECONDS, quality=PAGE_QUALITY,
        )  # fmt: skip


def animate(folder: Path, model: Path) -> None:
    """Make the documents' videos with a model folder, and write them as GIFs; ``demo`` is the README's."""
    renderer, engine = Renderer(make_canvases(CANVAS_SEED, 1)), ProductEngine(model, None)
    folder.mkdir(parents=True, exist_ok=True)
    readme, *others = EXAMPLES
    shown = {"demo": readme} | {file_name(example.prompt): example for example in others}
    for name, example in shown.items():
        picture = example.picture(renderer, PIXELS)
        video = engine.make(picture, example.prompt, example.mode, example.sections, example.seed)
        save_animation(folder / f"{name}.gif", video, PIXELS if name == "demo" else SMALL)


def main() -> None:
    """Draw the examples that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("assets/examples"), help="folder for the page's examples"
    )
    parser.add_argument("--film", action="store_true", help="also make the videos of the page's examples")
    parser.add_argument("--animations", type=Path, help="also make the videos, and write them here as GIFs")
    parser.add_argument("--model", type=Path, default=Path("assets/demo_model"), help="model folder")
    arguments = parser.parse_args()
    draw(arguments.folder)
    if arguments.film:
        film(arguments.folder, arguments.model)
    if arguments.animations:
        animate(arguments.animations, arguments.model)


if __name__ == "__main__":
    main()

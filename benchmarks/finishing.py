"""How near enlarged pictures and frames in between come to the originals, and how long they take.

    python benchmarks/finishing.py PICTURE... [--film FILM] [--flicker FILM]

Each picture is cut to a square, reduced by bicubic interpolation and enlarged again, by Real-ESRGAN and by
Lanczos. Every other frame of the film is left out and made again: along the motion, by repeating the frame
before it, and by blending its neighbours. Flicker is the mean difference of successive frames of a film that
was enlarged 4 times, whole and in tiles, over that of its frames; Lanczos is beside it.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.conditions.footage import all_frames  # noqa: E402
from diffusers_helper.conditions.picture_file import load_picture  # noqa: E402
from diffusers_helper.finish.enlarge import Upscaler  # noqa: E402
from diffusers_helper.finish.smooth import Smooth  # noqa: E402
from diffusers_helper.finish.step import Shape, Workshop  # noqa: E402

SIDE = 256


def psnr(frames: np.ndarray, originals: np.ndarray) -> float:
    error = np.mean((frames.astype(float) - originals) ** 2)
    return float("inf") if not error else 10 * np.log10(255**2 / error)


def enlarge(file: Path) -> Iterator[dict[str, Any]]:
    picture = ImageOps.fit(load_picture(file), (SIDE, SIDE), Image.Resampling.LANCZOS)
    for factor in (2, 4):
        small = picture.resize((SIDE // factor,) * 2, Image.Resampling.BICUBIC)
        network = Upscaler("animevideov3", factor, None)
        start = time.perf_counter()
        enlarged = network.enlarged(np.asarray(small))
        seconds = time.perf_counter() - start
        lanczos = np.asarray(small.resize(picture.size, Image.Resampling.LANCZOS))
        made = {"Real-ESRGAN": enlarged, "Lanczos": lanczos}
        figures = {f"{way} dB": round(psnr(result, np.asarray(picture)), 2) for way, result in made.items()}
        yield {"file": file.name, "factor": factor, **figures, "seconds": round(seconds, 2)}


def smooth(film: Path) -> dict[str, Any]:
    frames = np.stack([np.asarray(frame) for frame in all_frames(film, 60)])
    kept, missing = frames[::2], frames[1:-1:2]
    height, width = frames.shape[1:3]

    def read(begin: int, end: int) -> Iterator[np.ndarray]:
        yield from kept[begin:end]

    shape = Shape(width, height, Fraction(30), len(kept))
    start = time.perf_counter()
    smoothed = [*Smooth("60").open(read, shape, Workshop(lambda source, wanted: {}, print))(0, 2 * len(kept))]
    seconds = time.perf_counter() - start
    blended = (kept[:-1].astype(int) + kept[1:]) / 2
    made = {"along the motion": np.stack(smoothed[1::2]), "repeated": kept, "blended": blended}
    figures = {f"{way} dB": round(psnr(clip[: len(missing)], missing), 2) for way, clip in made.items()}
    facts = {"file": film.name, "frames": len(smoothed), "width": width, "height": height}
    return {**facts, **figures, "seconds": round(seconds, 1)}


def flicker(film: Path) -> dict[str, Any]:
    frames = [np.asarray(frame) for frame in all_frames(film)]
    height, width = frames[0].shape[:2]
    whole, tiled = (Upscaler("animevideov3", 4, None) for _ in range(2))
    tiled.tile = 64
    ways = {
        "whole": whole.enlarged,
        "tiles": tiled.enlarged,
        "Lanczos": lambda frame: np.asarray(
            Image.fromarray(frame).resize((4 * width, 4 * height), Image.Resampling.LANCZOS)
        ),
    }
    levels = mean_change(frames)
    made = {way: [enlarge_frame(frame) for frame in frames] for way, enlarge_frame in ways.items()}
    figures = {way: round(mean_change(clip) / levels, 3) for way, clip in made.items()}
    seams = max(
        int(np.abs(one.astype(int) - other).max())
        for one, other in zip(made["whole"], made["tiles"], strict=True)
    )
    return {"file": film.name, "frames": len(frames), "levels": round(levels, 2), **figures, "seams": seams}


def mean_change(frames: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.abs(new.astype(int) - old).mean() for old, new in pairwise(frames)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pictures", nargs="*", type=Path)
    parser.add_argument("--film", type=Path)
    parser.add_argument("--flicker", type=Path)
    arguments = parser.parse_args()
    with Rows(__file__) as rows:
        for picture in arguments.pictures:
            for row in enlarge(picture):
                rows.add(row)
        if arguments.film:
            rows.add(smooth(arguments.film))
        if arguments.flicker:
            rows.add(flicker(arguments.flicker))
    for row in rows:
        sys.stdout.write(f"{', '.join(f'{name} {value}' for name, value in row.items())}\n")
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())

"""How near the demo model comes to an end picture, in which the thing is elsewhere, larger and turned.

    python benchmarks/end_picture.py [--cases 40] [--first 0] [--sections 2] [--strengths 1 0.5]

The order is inverted, so only the first section is made, which holds the video's last frame. Each case is
made without the end picture, too. The thing counts as there if its place in the end picture and its own
share half of what they cover together.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.cancel import CancelToken  # noqa: E402
from diffusers_helper.errors import GenerationCancelled  # noqa: E402
from diffusers_helper.events import Event, SectionFinished  # noqa: E402
from diffusers_helper.loading.loaders import Models, load_models  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402
from training.figures import psnr, thing_mask  # noqa: E402
from training.render import Renderer, canvases  # noqa: E402
from training.scenes import DIRECTIONS, STILL, Drawing, Motion, sample_scene  # noqa: E402

SIZE = (128, 128)
SEED = 7_000_001
FURTHER, LARGER, TURNED = 0.35, 1.4, 0.8


def cases(count: int) -> Iterator[tuple[Drawing, Drawing, str]]:
    """Yield the scenes of the start and of the end, and the prompt."""
    rng = np.random.default_rng(SEED)
    while count:
        scene = sample_scene(rng, *SIZE, 12, counts=(0, 1))
        name = str(rng.choice(list(DIRECTIONS)))
        dx, dy = DIRECTIONS[name]
        if not scene.things or scene.grain:
            continue
        thing = scene.things[0]
        end = replace(
            thing, x=thing.x + FURTHER * dx, y=thing.y + FURTHER * dy, radius=thing.radius * LARGER,
            angle=thing.angle + TURNED,
        )  # fmt: skip
        if max(abs(end.x) - scene.half_width, abs(end.y) - scene.half_height) + end.radius > 0:
            continue
        count -= 1
        yield scene, replace(scene, things=(end,)), f"the {thing.colour} {thing.shape} moves {name}"


def frame_of(pixels: np.ndarray) -> torch.Tensor:
    """Return a frame (H, W, 3) of bytes as (3, H, W) in -1..1."""
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 127.5 - 1


def first_section(request: GenerationRequest, models: Models, folder: Path) -> Path:
    """Make only the first section, and return its file."""
    cancel = CancelToken()

    def end(event: Event) -> None:
        if isinstance(event, SectionFinished):
            cancel.cancel()

    with suppress(GenerationCancelled):
        generate(request, models, folder=folder, on_event=end, cancel=cancel)
    return folder / "video.mp4"


def main() -> int:
    """Measure, print the figures of each strength, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="the number of cases to leave out")
    parser.add_argument("--sections", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--strengths", type=float, nargs="+", default=[1.0])
    arguments = parser.parse_args()
    renderer, models = Renderer(canvases(SEED, 12)), load_models(find_model("demo"))
    with tempfile.TemporaryDirectory() as place, Rows(__file__) as rows:
        for number, (start, end, prompt) in islice(enumerate(cases(arguments.cases)), arguments.first, None):
            paths, drawn = [], []
            for name, scene in (("start", start), ("end", end)):
                drawn.append(renderer.clip(scene, Motion(STILL, ""), [0], SIZE)[:, 0])
                pixels = ((drawn[-1] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
                paths.append(f"{place}/{name}-{number}.png")
                Image.fromarray(pixels).save(paths[-1])
            request = GenerationRequest(
                image=paths[0], prompt=prompt, seconds=max(1.0, 1.2 * arguments.sections), crf=1,
                steps=arguments.steps, seed=number,
            )  # fmt: skip
            there = thing_mask(renderer, end, drawn[1])
            for strength in (math.nan, *arguments.strengths):
                led = {} if math.isnan(strength) else {"end_image": paths[1], "end_strength": strength}
                folder = Path(f"{place}/{number}-{strength}")
                last = frame_of(imageio.imread(first_section(replace(request, **led), models, folder))[-1])
                shown = thing_mask(renderer, end, last)
                overlap = float((there & shown).sum() / (there | shown).sum().clamp_min(1))
                row = {"case": number, "strength": strength, "psnr": psnr(last, drawn[1]), "overlap": overlap}
                rows.add(row)
        for strength in (math.nan, *arguments.strengths):
            found = [row for row in rows if row["strength"] is strength or row["strength"] == strength]
            decibels = [row["psnr"] for row in found]
            near = [row["overlap"] >= 0.5 for row in found]
            both = sum(there and one >= 20 for one, there in zip(decibels, near, strict=True))
            sys.stdout.write(
                f"strength {strength:g}: mean {np.mean(decibels):.1f} dB, median {np.median(decibels):.1f}, "
                f"at least 20 dB in {sum(one >= 20 for one in decibels)}, there in {sum(near)}, "
                f"both in {both} of {len(found)}\n"
            )
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())

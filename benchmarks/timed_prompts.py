"""How often the demo model follows a prompt that names one motion for each half of a video.

    python benchmarks/timed_prompts.py [--cases 60] [--first 0] [--steps 4] [--blend 0]

The video has two sections, and the orders take turns. Each half is judged by itself, from where the thing is
when it begins.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from training.evaluate import MODES  # noqa: E402
from training.figures import centre, thing_mask  # noqa: E402
from training.product_engine import ProductEngine  # noqa: E402
from training.render import Renderer, canvases  # noqa: E402
from training.scenes import DIRECTIONS, STILL, Case, Drawing, Motion, moved, sample_scene  # noqa: E402
from training.tracker import Seen, agrees, read  # noqa: E402

SIZE = (128, 128)
SEED = 7_000_003
HALF, SECONDS = 36, 1.2
READ_AT = [HALF // 2, HALF]
MOTIONS = (*DIRECTIONS, "grows", "shrinks")


def words(scene: Drawing, name: str) -> str:
    """Return the sentence for a motion of the scene's thing."""
    thing = scene.things[0]
    return f"the {thing.colour} {thing.shape} {f'moves {name}' if name in DIRECTIONS else name}"


def after(scene: Drawing, name: str) -> Drawing:
    """Return the scene in which the thing has moved for one half."""
    return replace(scene, things=(moved(scene.things[0], Motion(name), HALF, scene),))


def cases(renderer: Renderer) -> Iterator[tuple[Drawing, tuple[str, str]]]:
    """Yield scenes with one thing, each with two motions of which the true halves are read correctly."""
    rng = np.random.default_rng(SEED)
    while True:
        scene = sample_scene(rng, *SIZE, 12, counts=(0, 1))
        first, second = map(str, rng.choice(MOTIONS, 2, replace=False))
        if not scene.things or scene.grain:
            continue
        halves = (scene, first), (after(scene, first), second)
        clips = [renderer.clip(one, Motion(name), range(HALF + 1), SIZE) for one, name in halves]
        if all(
            follows(renderer, scene, name, clip)[1] for (_, name), clip in zip(halves, clips, strict=True)
        ):
            yield scene, (first, second)


def follows(renderer: Renderer, scene: Drawing, name: str, half: Tensor) -> tuple[Seen | None, bool]:
    """Return the motion seen in one half (3, 37, H, W) of a video, and whether it is the named one."""
    drawn = thing_mask(renderer, scene, renderer.clip(scene, Motion(STILL), [0], SIZE)[:, 0])
    # The mask of a thing ends far from the place where the scene has it, so it is searched in all places.
    anywhere = replace(scene, things=(replace(scene.things[0], radius=1.0),))
    shown = thing_mask(renderer, anywhere, half[:, 0])
    if not shown.any() or not drawn.any():
        return None, False
    thing, (down, right) = (
        scene.things[0],
        ((centre(shown) - centre(drawn)) / math.sqrt(math.prod(SIZE))).tolist(),
    )
    grown = math.sqrt(float(shown.sum() / drawn.sum()))
    begun = replace(thing, x=thing.x + right, y=thing.y + down, radius=thing.radius * grown)
    case = Case(replace(scene, things=(begun,)), Motion(name), words(scene, name))
    seen = read(renderer, case, half[:, READ_AT], READ_AT)
    return seen, agrees(case, seen)


def main() -> int:
    """Measure, print each case and the share of those that follow both prompts, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the number of cases to leave out")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--blend", type=int, default=0, help="the sections that the change takes")
    arguments = parser.parse_args()
    renderer = Renderer(canvases(SEED, 12))
    engine = ProductEngine(ROOT / "assets" / "demo_model", arguments.steps)
    with Rows(__file__) as rows:
        for number, (scene, names) in islice(enumerate(cases(renderer)), arguments.first, arguments.cases):
            picture = renderer.clip(scene, Motion(STILL), [0], SIZE)[:, 0]
            prompt = f"{words(scene, names[0])} [{SECONDS}s: {words(scene, names[1])}]"
            mode = MODES[number % 2]
            video = engine.make(picture, prompt, mode, 2, seed=number)
            halves = [follows(renderer, scene, name, half) for name, half in zip(
                names, (video[:, : HALF + 1], video[:, HALF:]), strict=True,
            )]  # fmt: skip
            row = {"case": number, "mode": mode, "named": names} | {
                "seen": [seen and f"{seen.motion} x{seen.amount:.2f}" for seen, _ in halves],
                "right": [right for _, right in halves],
            }
            rows.add(row)
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
        for mode in MODES:
            right = np.array([row["right"] for row in rows if row["mode"] == mode])
            sys.stdout.write(
                f"{mode}: {right.sum(0)} halves and {right.all(1).sum()} of {len(right)} right\n"
            )
    return rows.exit_code()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())

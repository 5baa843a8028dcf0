"""The measurement of longer videos, whose words change, and of videos from words alone.

``python -m training.lasting`` makes 60 of each with the product's own code, and writes their figures as JSON.
"""

import argparse
import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffusers_helper.families.packing import FPS, LATENT_WINDOW_SIZE, MODES
from training.figures import centre, overlap_of, thing_mask
from training.product_engine import ProductEngine
from training.render import CANVAS_PIXELS, Renderer, canvases, mask_of
from training.scenes import (
    COLOURS,
    DIRECTIONS,
    SHAPES,
    STILL,
    Act,
    Background,
    Case,
    Drawing,
    Motion,
    Thing,
    colour_distance,
    sample_scene,
    sample_speed,
    shown,
    write_prompt,
)
from training.stories import bare_prompt
from training.tracker import Seen, agrees, read

LOG = logging.getLogger(__name__)
SEED = 7_000_003
SECTION = 4 * LATENT_WINDOW_SIZE
READ_AT = [SECTION // 2, SECTION]
# The sections of videos of 5 and 10 s, and those with which the words change: at 1.2, 2.4, 3.6 and 6 s.
CHANGES = ((4, (1,)), (4, (2,)), (4, (3,)), (8, (3, 5)), (4, ()), (8, (2, 5)))
MOTIONS = (*DIRECTIONS, "grows", "shrinks", STILL)
LEAST_OVERLAP = 0.7  # of a shape with the named one
LEAST_AREA, MOST_AREA = 0.01, 0.4
NEAR_COLOUR = 0.5  # of the distance of the thing's colour from the ground's


def stories(renderer: Renderer, side: int, seed: int) -> Iterator[tuple[Drawing, list[Act], str, int]]:
    """Yield scenes of one thing with acts, the timed prompt for them, and the number of sections.

    Each act moves the thing for as long as it lasts, which true clips show to the tracker, or lets it rest.
    """
    rng = np.random.default_rng(seed)
    number = 0
    while True:
        sections, changes = CHANGES[number % len(CHANGES)]
        scene = sample_scene(rng, side, side, renderer.count, counts=(0, 1))
        if not scene.things or scene.grain:
            continue
        acts, prompt = [], ""
        for begin in (0, *changes):
            name = str(rng.choice(MOTIONS))
            motion = Motion(name, "" if name == STILL else sample_speed(rng))
            acts.append(Act(motion, 0, begin * SECTION))
            words = write_prompt(rng, scene, motion) or "nothing moves"
            prompt += f" [{begin * SECTION / FPS:g}s: {words}]" if begin else words
        names = [act.motion.name for act in acts]
        if any(first == second for first, second in pairwise(names)) or names == [STILL]:
            continue
        if readable(renderer, scene, acts, sections, side):
            yield scene, acts, prompt, sections
            number += 1


def readable(renderer: Renderer, scene: Drawing, acts: list[Act], sections: int, side: int) -> bool:
    """Return whether the true video shows what each section asks for, as ``follows`` sees it."""
    for number in range(sections):
        begin = number * SECTION
        frames = [begin, begin + READ_AT[0], begin + READ_AT[1]]
        clip = renderer.story(scene, acts, frames, (side, side))
        if not follows(renderer, begun(scene, acts, begin), motion_at(acts, begin), clip)[1]:
            return False
    return True


def motion_at(acts: list[Act], frame: int) -> Motion:
    """Return the motion that the words ask for from a frame on."""
    return [act.motion for act in acts if act.begin <= frame][-1]


def begun(scene: Drawing, acts: list[Act], frame: int) -> Drawing:
    """Return the scene with its things where they are at a frame."""
    return replace(scene, things=shown(scene, acts, frame)[0])


def follows(renderer: Renderer, scene: Drawing, motion: Motion, clip: Tensor) -> tuple[Seen | None, bool]:
    """Return the motion seen in a section, and whether it is the named one.

    ``clip`` has its first, middle and last frame (3, 3, H, W). The motion begins where the thing is in the
    first of them.
    """
    size = (clip.shape[2], clip.shape[3])
    drawn = thing_mask(renderer, scene, renderer.clip(scene, Motion(), [0], size)[:, 0])
    # The mask of a thing ends far from the place where the scene has it, so it is searched in all places.
    anywhere = replace(scene, things=(replace(scene.things[0], radius=1.0),))
    mask = thing_mask(renderer, anywhere, clip[:, 0])
    if not mask.any() or not drawn.any():
        return None, False
    thing = scene.things[0]
    down, right = ((centre(mask) - centre(drawn)) / math.sqrt(math.prod(size))).tolist()
    grown = math.sqrt(float(mask.sum() / drawn.sum()))
    there = replace(thing, x=thing.x + right, y=thing.y + down, radius=thing.radius * grown)
    case = Case(replace(scene, things=(there,)), motion, "")
    seen = read(renderer, case, clip[:, 1:], READ_AT)
    return seen, agrees(case, seen)


def judge_story(
    renderer: Renderer, scene: Drawing, acts: list[Act], video: Tensor, sections: int
) -> tuple[list[bool], list[str]]:
    """Return for each section of a video whether it shows what the words ask for, and what was seen."""
    right, seen = [], []
    for number in range(sections):
        begin = number * SECTION
        clip = video[:, [begin, *(begin + frame for frame in READ_AT)]]
        read_as, agreed = follows(renderer, begun(scene, acts, begin), motion_at(acts, begin), clip)
        right.append(agreed)
        seen.append(f"{read_as.motion} x{read_as.amount:.2f}" if read_as else "nothing")
    return right, seen


def bare_cases(seed: int) -> Iterator[tuple[Thing, str, Motion, str]]:
    """Yield a thing, the colour of the ground, a motion, and the prompt that names all of them."""
    rng = np.random.default_rng(seed)
    names = [name for name in MOTIONS if name != STILL]
    while True:
        colour, ground = map(str, rng.choice(list(COLOURS), 2, replace=False))
        if colour_distance(COLOURS[colour], COLOURS[ground]) < 0.35:
            continue
        thing = Thing(str(rng.choice(SHAPES)), colour, COLOURS[colour], 0.0, 0.0, 0.18)
        motion = Motion(str(rng.choice(names)), "")
        yield thing, ground, motion, bare_prompt(rng, thing, motion, ground)


def coloured(frame: Tensor, thing: Thing, ground: str) -> Tensor:
    """Return a mask (H, W) of the pixels of a frame (3, H, W) that are nearer to the thing's colour."""
    own, other = (torch.tensor(rgb).mul(2).sub(1).view(3, 1, 1) for rgb in (thing.rgb, COLOURS[ground]))
    apart = float((own - other).square().sum().sqrt())
    return (frame - own).square().sum(0).sqrt() < NEAR_COLOUR * apart


def judge_bare(
    renderer: Renderer, thing: Thing, ground: str, motion: Motion, video: Tensor
) -> dict[str, bool]:
    """Return whether a video from words alone shows the colour, the shape and the motion."""
    size = (video.shape[2], video.shape[3])
    mask = coloured(video[:, 0], thing, ground)
    if not LEAST_AREA < float(mask.float().mean()) < MOST_AREA:
        return {"colour": False, "shape": False, "motion": False}
    row, column = (centre(mask) / math.sqrt(math.prod(size))).tolist()
    x, y = (
        value - half / math.sqrt(math.prod(size))
        for value, half in ((column, size[1] / 2), (row, size[0] / 2))
    )
    overlaps = {}
    for shape in SHAPES:
        drawn = mask_of(replace(thing, shape=shape), size)
        scale = math.sqrt(float(mask.sum() / drawn.sum()))
        fitted = replace(thing, shape=shape, radius=thing.radius * scale)
        overlaps[shape] = (overlap_of(mask_of(fitted, size), mask), fitted.radius)
    best = max(overlaps, key=lambda shape: overlaps[shape][0])
    ground_rgb = tuple(((video[:, 0][:, ~mask].median(1).values + 1) / 2).tolist())
    there = replace(thing, x=x, y=y, radius=overlaps[thing.shape][1])
    scene = Drawing(Background("solid", (ground_rgb, ground_rgb), 0.0, 0.3, 0.0), (there,), 0.5, 0.5)
    case = Case(scene, motion, "")
    last = video.shape[1] - 1
    frames = [last // 2, last]
    return {
        "colour": True,
        "shape": best == thing.shape and overlaps[best][0] >= LEAST_OVERLAP,
        "motion": agrees(case, read(renderer, case, video[:, frames], frames)),
    }


def share(values: list[bool]) -> str:
    return f"{sum(values)} of {len(values)}"


def main() -> None:
    """Measure the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("assets/demo_model"), help="model folder")
    parser.add_argument("--cases", type=int, default=60, help="videos of each kind")
    parser.add_argument("--steps", type=int, default=None, help="sampling steps (default: the model's own)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the cases")
    parser.add_argument("--out", type=Path, default=Path(".training/lasting.json"), help="JSON file to write")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    LOG.setLevel(logging.INFO)
    engine = ProductEngine(arguments.model, arguments.steps)
    renderer = Renderer(canvases(arguments.seed, 12, CANVAS_PIXELS * engine.side // 128))
    table = lasting(engine, renderer, arguments) | words_alone(engine, renderer, arguments)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    shares = {name: value for name, value in table.items() if isinstance(value, str)}
    LOG.info("%s", json.dumps(shares, indent=2))


def lasting(engine: ProductEngine, renderer: Renderer, arguments: argparse.Namespace) -> dict:
    """Return the shares of sections that show what is asked for, and of changes seen in their own time.

    A change is seen in its own time if the sections before and after it are right.
    """
    groups: dict[str, list[bool]] = defaultdict(list)
    rows = []
    cases = stories(renderer, engine.side, arguments.seed)
    for number, (scene, acts, prompt, sections) in enumerate(islice(cases, arguments.cases)):
        mode = MODES[number // 2 % 2]
        picture = renderer.clip(scene, Motion(), [0], (engine.side, engine.side))[:, 0]
        video = engine.make(picture, prompt, mode, sections, seed=number)
        right, seen = judge_story(renderer, scene, acts, video, sections)
        rows.append({"prompt": prompt, "mode": mode, "right": right, "seen": seen})
        LOG.info("%s", rows[-1])
        for place, is_right in enumerate(right):
            moves = motion_at(acts, place * SECTION).name != STILL
            groups[f"sections that {'move' if moves else 'rest'}, {mode}"].append(is_right)
            groups[f"sections after 2.4 s, {mode}"] += [is_right] if place >= 2 else []
        for act in acts[1:]:
            place = int(act.begin) // SECTION
            changed = right[place - 1] and right[place]
            groups[f"changes at {act.begin / FPS:g} s, {mode}"].append(changed)
            groups["changes"].append(changed)
        groups["sections"] += right
    return {name: share(groups[name]) for name in sorted(groups)} | {"lasting": rows}


def words_alone(engine: ProductEngine, renderer: Renderer, arguments: argparse.Namespace) -> dict:
    """Return the shares of videos from words alone with the right colour, shape and motion, and with all."""
    groups: dict[str, list[bool]] = defaultdict(list)
    rows = []
    cases = islice(bare_cases(arguments.seed), arguments.cases)
    for number, (thing, ground, motion, prompt) in enumerate(cases):
        video = engine.make(None, prompt, MODES[number % 2], 1, seed=number)
        judged = judge_bare(renderer, thing, ground, motion, video)
        rows.append({"prompt": prompt, "mode": MODES[number % 2], **judged})
        LOG.info("%s", rows[-1])
        for name, value in {**judged, "all": all(judged.values())}.items():
            groups[f"words alone, {name}"].append(value)
    return {name: share(values) for name, values in groups.items()} | {"words_alone": rows}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""The stories that the transformer learns: scenes, what happens in them in turn, and the words for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from training.scenes import (
    CAMERA_MOTIONS,
    COLOURS,
    DIRECTIONS,
    LARGEST,
    MOTIONS,
    OBJECT_MOTIONS,
    PLAIN,
    SHAPES,
    SMALLEST,
    STILL,
    Act,
    Background,
    Drawing,
    Motion,
    Thing,
    View,
    colour_distance,
    half_extent,
    make_case,
    sample_scene,
    sample_speed,
    shown,
    verb_of,
    visible,
    write_prompt,
)

# The relative frequency of each motion. Motions that are learned early are drawn less often, and spins, which
# are learned last, most often.
SHARES = dict.fromkeys(MOTIONS, 1.0) | {
    "right": 2.0, "left": 1.6, "up": 2.0, "down": 1.6, "grows": 1.2, "shrinks": 1.4, "spins": 3.0,
    "zooms in": 1.3, "zooms out": 1.8, "pans right": 0.8, "pans left": 0.8, "pans up": 0.8, "pans down": 0.8,
    "stays still": 0.8,
}  # fmt: skip
# The relative frequency of scenes of none to three things. Which thing a prompt names is hard to learn, so
# scenes of several things are drawn more often than in the evaluation.
THING_COUNTS = (0.04, 0.36, 0.42, 0.18)
GROUNDS = (0.11, 0.13, 0.09, 0.07, 0.07, 0.07, 0.12, 0.18, 0.16)
# The share of moves of one of several things over a plain ground, where only the other things show that the
# camera does not pan.
PLAIN_MOVES = 0.3
# The share of scenes with a warm colour before a bright ground, around which the VAE's decoder drew a rim.
WARM_ON_BRIGHT = 0.15
WARM = ("red", "orange", "purple")
# A thing nearer to an edge is not sent over it, since that would hardly be seen.
EDGE = 0.15
# What words alone leave open is always the same, so that it can be learned.
BARE_GROUND, BARE_RADIUS, BARE_DISTANCE = (0.72, 0.74, 0.76), 0.18, 0.22
GROUND_NAMED = 0.7


@dataclass(frozen=True)
class Story:
    """A scene, the acts in it, and a prompt for each."""

    scene: Drawing
    acts: tuple[Act, ...]
    prompts: tuple[str, ...]


def draw_story(
    rng: np.random.Generator, size: tuple[int, int], canvases: int, begins: Sequence[float]
) -> Story:
    """Return a random story whose acts begin at these frames."""
    scene, motion = _first(rng, size, canvases)
    case = make_case(rng, scene, motion)
    acts, prompts = [Act(motion)], [case.prompt]
    for begin in begins[1:]:
        act, prompt = _next(rng, case.scene, acts, float(begin))
        acts.append(act)
        prompts.append(prompt)
    return Story(case.scene, tuple(acts), tuple(prompts))


def _first(rng: np.random.Generator, size: tuple[int, int], canvases: int) -> tuple[Drawing, Motion]:
    weights = np.array([SHARES[name] for name in MOTIONS])
    wanted = str(rng.choice(MOTIONS, p=weights / weights.sum()))
    plain = wanted in DIRECTIONS and rng.random() < PLAIN_MOVES
    draw = partial(sample_scene, rng, *size, canvases, THING_COUNTS, GROUNDS)
    while True:
        scene = warmed(rng, draw()) if rng.random() < WARM_ON_BRIGHT else draw()
        of_thing, of_camera = visible(scene)
        suits = not plain or (scene.background.kind in PLAIN and len(scene.things) > 1)
        if suits and wanted in (STILL, *of_thing, *of_camera):
            return scene, Motion(wanted, "" if wanted == STILL else sample_speed(rng))


def warmed(rng: np.random.Generator, scene: Drawing) -> Drawing:
    """Return the scene with a bright ground, and its first thing in a warm colour."""
    bright = tuple(tuple(map(float, rng.uniform(0.65, 1.0, 3))) for _ in range(2))
    kind = str(rng.choice(("solid", "gradient", "hills")))
    ground = replace(scene.background, kind=kind, rgb=bright)
    colour = str(rng.choice(WARM))
    others = tuple(thing for thing in scene.things[1:] if thing.colour != colour)
    first = tuple(replace(thing, colour=colour, rgb=COLOURS[colour]) for thing in scene.things[:1])
    return replace(scene, background=ground, things=first + others)


def _next(rng: np.random.Generator, scene: Drawing, acts: list[Act], begin: float) -> tuple[Act, str]:
    """Return an act that can be seen at a frame and differs from the last one, and its prompt."""
    things, view = shown(scene, acts, begin)
    in_view = [number for number, thing in enumerate(things) if _is_in_view(thing, view, scene)]
    target = int(rng.choice(in_view)) if in_view else 0
    choices = [STILL, *CAMERA_MOTIONS] if in_view or scene.background.kind not in PLAIN else [STILL]
    # The limits of a zoom are seen from its beginning only if the camera has not zoomed before.
    if any(act.motion.name.startswith("zooms") for act in acts):
        choices = [name for name in choices if not name.startswith("zooms")]
    if in_view:
        thing = things[target]
        radius = thing.radius / view.width
        x, y = (thing.x - view.x) / view.width, (thing.y - view.y) / view.width
        left_out = {
            name: x * dx > scene.half_width - EDGE or y * dy > scene.half_height - EDGE
            for name, (dx, dy) in DIRECTIONS.items()
        } | {
            "grows": radius > LARGEST / 1.5,
            "shrinks": radius < 3 * SMALLEST,
            "spins": thing.shape == "ball",
        }
        choices += [name for name in OBJECT_MOTIONS if not left_out.get(name)]
    last = acts[-1].motion.name
    choices = [name for name in choices if name != last] or [STILL]
    weights = np.array([SHARES[name] for name in choices])
    name = str(rng.choice(choices, p=weights / weights.sum()))
    motion = Motion(name, "" if name == STILL else sample_speed(rng))
    # A prompt is for the first thing.
    things = (*scene.things[target : target + 1], *scene.things[:target], *scene.things[target + 1 :])
    return Act(motion, target, begin), write_prompt(rng, replace(scene, things=things), motion)


def _is_in_view(thing: Thing, view: View, scene: Drawing) -> bool:
    x, y = (thing.x - view.x) / view.width, (thing.y - view.y) / view.width
    return abs(x) < scene.half_width and abs(y) < scene.half_height and thing.radius / view.width > SMALLEST


def bare_story(rng: np.random.Generator, size: tuple[int, int], begins: Sequence[float]) -> Story:
    """Return a random story that its words alone determine; its acts begin at these frames."""
    half_width, half_height = half_extent(*size)
    while True:
        colour, ground_colour = map(str, rng.choice(list(COLOURS), 2, replace=False))
        ground = COLOURS[ground_colour] if rng.random() < GROUND_NAMED else BARE_GROUND
        if colour_distance(COLOURS[colour], ground) > 0.35:
            break
    thing = Thing(str(rng.choice(SHAPES)), colour, COLOURS[colour], 0.0, 0.0, BARE_RADIUS)
    scene = Drawing(Background("solid", (ground, ground), 0.0, 0.3, 0.0), (thing,), half_width, half_height)
    of_thing, of_camera = visible(scene)
    names = [*of_thing, STILL, *(name for name in of_camera if name.startswith("zooms"))]
    weights = np.array([SHARES[name] for name in names])
    name = str(rng.choice(names, p=weights / weights.sum()))
    motion = Motion(name, "" if name == STILL else sample_speed(rng))
    scene = replace(scene, things=(placed(thing, motion),))
    acts = [Act(motion)]
    prompts = [bare_prompt(rng, thing, motion, ground_colour if ground != BARE_GROUND else "")]
    for begin in begins[1:]:
        act, prompt = _next(rng, scene, acts, float(begin))
        acts.append(act)
        prompts.append(prompt)
    return Story(scene, tuple(acts), tuple(prompts))


def placed(thing: Thing, motion: Motion) -> Thing:
    """Return a thing of words alone at its place: it moves from one half of the picture to the other."""
    dx, dy = DIRECTIONS.get(motion.name, (0.0, 0.0))
    return replace(thing, x=-BARE_DISTANCE * dx, y=-BARE_DISTANCE * dy)


def bare_prompt(rng: np.random.Generator, thing: Thing, motion: Motion, ground: str) -> str:
    """Return a prompt for a video from words alone, such as "a red ball on green moves right"."""
    words = [
        "an" if thing.colour == "orange" else "a",
        thing.colour,
        thing.shape,
        *(["on", ground] if ground else []),
    ]
    if motion.name in CAMERA_MOTIONS:
        words[-1] += ","
        words += ["the", "camera"]
    words += [verb_of(motion), *([motion.speed] if motion.speed else [])]
    return " ".join(words)

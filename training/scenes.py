"""The synthetic scenes: the content of a picture, its motions over time, and the prompt for one.

Lengths are in units of the picture's side, the square root of width times height, with the origin in the
middle, x to the right and y downwards. A motion goes on for as long as its words hold, at the speed that they
name, as seen in the picture: things leave it, and growing, shrinking and zooming have limits. All positions
therefore follow from the start and the time alone, on which inverted sampling depends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from diffusers_helper.families.packing import FPS

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.13, 0.12),
    "green": (0.12, 0.62, 0.20),
    "blue": (0.13, 0.25, 0.85),
    "yellow": (0.96, 0.87, 0.12),
    "orange": (0.97, 0.52, 0.07),
    "purple": (0.55, 0.17, 0.68),
    "white": (0.97, 0.97, 0.97),
    "black": (0.04, 0.04, 0.04),
}
SHAPES = ("ball", "square", "triangle", "diamond")
DIRECTIONS = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}
OBJECT_MOTIONS = ("right", "left", "up", "down", "grows", "shrinks", "spins")
CAMERA_MOTIONS = ("zooms in", "zooms out", "pans right", "pans left", "pans up", "pans down")
STILL = "stays still"
MOTIONS = OBJECT_MOTIONS + CAMERA_MOTIONS + (STILL,)
SPEEDS = ("slowly", "", "quickly")
# Speeds per second: sides, powers of e, radians. Things and motions smaller than these leave almost no trace
# in the latents, and are learned last or never.
MOVE = {"slowly": 0.10, "": 0.19, "quickly": 0.31}
GROWTH = {"slowly": 0.25, "": 0.42, "quickly": 0.63}
SPIN = {"slowly": math.radians(33), "": math.radians(62), "quickly": math.radians(92)}
ZOOM = {"slowly": 0.17, "": 0.29, "quickly": 0.46}
PAN = {"slowly": 0.09, "": 0.17, "quickly": 0.26}
# Where growing and shrinking end, as radii in the picture, and zooming, as widths of the view.
LARGEST, SMALLEST = 0.4, 0.02
NEAREST, FARTHEST = 1 / 8, 3.5
RADII = (0.11, 0.24)
# The relative frequency of scenes of none, one, two and three things.
THING_COUNTS = (0.06, 0.48, 0.36, 0.10)
BACKGROUNDS = ("solid", "gradient", "radial", "stripes", "waves", "checker", "noise", "leaves", "hills")
# Their relative frequency in the evaluation.
GROUND_FREQUENCIES = (0.13, 0.13, 0.09, 0.1, 0.1, 0.1, 0.15, 0.2, 0.0)
# Grounds over which a camera without a thing in view seems to stand still.
PLAIN = ("solid", "gradient")


@dataclass(frozen=True)
class Thing:
    """One flat shape. ``radius`` is about half its height, and ``angle`` is in radians."""

    shape: str
    colour: str
    rgb: tuple[float, float, float]
    x: float
    y: float
    radius: float
    angle: float = 0.0


@dataclass(frozen=True)
class Background:
    """A background: its kind, its two colours, and the numbers that determine its pattern."""

    kind: str
    rgb: tuple[tuple[float, float, float], ...]
    angle: float
    scale: float
    phase: float
    canvas: int = 0


@dataclass(frozen=True)
class Drawing:
    """The content of a picture. A prompt may name the first of ``things``, which lies on top."""

    background: Background
    things: tuple[Thing, ...]
    half_width: float
    half_height: float
    grain: float = 0.0


@dataclass(frozen=True)
class Motion:
    """One of ``MOTIONS`` at one of ``SPEEDS``; ``amount`` scales it, with 1 for the strength as named."""

    name: str = STILL
    speed: str = ""
    amount: float = 1.0


@dataclass(frozen=True)
class Act:
    """A motion of one thing or of the camera, which begins at a frame and ends where the next act begins."""

    motion: Motion
    target: int = 0
    begin: float = 0.0


@dataclass(frozen=True)
class View:
    """What the camera shows: its shift in x and y, and the width, which is 1 at the start."""

    x: float = 0.0
    y: float = 0.0
    width: float = 1.0


@dataclass(frozen=True)
class Case:
    """A scene, its motion and the prompt that describes it."""

    scene: Drawing
    motion: Motion
    prompt: str


def half_extent(height: int, width: int) -> tuple[float, float]:
    """Return half the width and half the height of a picture in units of its side."""
    side = math.sqrt(height * width)
    return width / (2 * side), height / (2 * side)


def moved(thing: Thing, motion: Motion, frames: float, width: float = 1.0) -> Thing:
    """Return a thing after some frames of a motion, seen by a camera with a view of this width."""
    seconds = frames / FPS * motion.amount
    if motion.name in DIRECTIONS:
        dx, dy = DIRECTIONS[motion.name]
        distance = MOVE[motion.speed] * seconds * width
        return replace(thing, x=thing.x + dx * distance, y=thing.y + dy * distance)
    if motion.name == "grows":
        limit = max(thing.radius, LARGEST * width)
        return replace(thing, radius=min(thing.radius * math.exp(GROWTH[motion.speed] * seconds), limit))
    if motion.name == "shrinks":
        limit = min(thing.radius, SMALLEST * width)
        return replace(thing, radius=max(thing.radius * math.exp(-GROWTH[motion.speed] * seconds), limit))
    if motion.name == "spins":
        return replace(thing, angle=thing.angle + SPIN[motion.speed] * seconds)
    return thing


def filmed(view: View, motion: Motion, frames: float) -> View:
    """Return what the camera shows after some frames of a motion."""
    seconds = frames / FPS * motion.amount
    if motion.name == "zooms in":
        narrower = view.width * math.exp(-ZOOM[motion.speed] * seconds)
        return replace(view, width=max(narrower, min(view.width, NEAREST)))
    if motion.name == "zooms out":
        wider = view.width * math.exp(ZOOM[motion.speed] * seconds)
        return replace(view, width=min(wider, max(view.width, FARTHEST)))
    if motion.name.startswith("pans "):
        dx, dy = DIRECTIONS[motion.name[5:]]
        distance = PAN[motion.speed] * seconds * view.width
        return replace(view, x=view.x + dx * distance, y=view.y + dy * distance)
    return view


def shown(scene: Drawing, acts: Sequence[Act], frame: float) -> tuple[tuple[Thing, ...], View]:
    """Return the things of a scene and the camera's view at a frame."""
    things, view = list(scene.things), View()
    for act, following in zip_longest(acts, acts[1:]):
        frames = (frame if following is None else min(frame, following.begin)) - act.begin
        if frames <= 0:
            break
        if act.motion.name in OBJECT_MOTIONS and act.target < len(things):
            things[act.target] = moved(things[act.target], act.motion, frames, view.width)
        view = filmed(view, act.motion, frames)
    return tuple(things), view


def sample_background(
    rng: np.random.Generator, canvases: int, frequencies: Sequence[float] = GROUND_FREQUENCIES
) -> Background:
    """Return a random background; ``canvases`` is the number of bitmaps to choose from."""
    weights = np.array(frequencies)
    kind = str(rng.choice(BACKGROUNDS, p=weights / weights.sum()))
    base = rng.uniform(0.05, 0.95, 3) if rng.random() < 0.75 else np.full(3, rng.uniform(0.1, 0.9))
    second = np.clip(base + rng.normal(0, 0.22, 3), 0, 1) if rng.random() < 0.7 else rng.uniform(0, 1, 3)
    rgb = (tuple(map(float, base)), tuple(map(float, second)))
    return Background(
        kind=kind,
        rgb=rgb,
        angle=float(rng.uniform(0, 2 * math.pi)),
        scale=float(rng.uniform(0.14, 0.5)),
        phase=float(rng.uniform(0, 1)),
        canvas=int(rng.integers(canvases)) if canvases else 0,
    )


def colour_distance(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Return the Euclidean distance of two RGB colours, 0 to about 1.7."""
    return float(np.linalg.norm(np.subtract(first, second)))


def sample_thing(rng: np.random.Generator, scene: Drawing, avoid: tuple[Thing, ...] = ()) -> Thing | None:
    """Return a random thing that differs in colour from the background and covers no other thing, or None."""
    names = list(COLOURS)
    for _ in range(24):
        colour = names[int(rng.integers(len(names)))]
        rgb = tuple(float(v) for v in np.clip(np.array(COLOURS[colour]) + rng.normal(0, 0.025, 3), 0, 1))
        plain = scene.background.kind not in ("noise", "leaves")
        if plain and min(colour_distance(rgb, b) for b in scene.background.rgb) < 0.35:
            continue
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        if any(t.colour == colour and t.shape == shape for t in avoid):
            continue
        radius = float(np.exp(rng.uniform(*np.log(RADII))))
        room_x, room_y = scene.half_width - radius - 0.01, scene.half_height - radius - 0.01
        x, y = float(rng.uniform(-room_x, room_x)), float(rng.uniform(-room_y, room_y))
        if rng.random() < 0.3:
            x, y = x * 0.15, y * 0.15
        if any(math.hypot(t.x - x, t.y - y) < 1.15 * (t.radius + radius) for t in avoid):
            continue
        return Thing(shape, colour, rgb, x, y, radius, float(rng.normal(0, 0.12)))
    return None


def sample_scene(
    rng: np.random.Generator, height: int, width: int, canvases: int,
    counts: Sequence[float] = THING_COUNTS, grounds: Sequence[float] = GROUND_FREQUENCIES,
) -> Drawing:  # fmt: skip
    """Return a random scene for a picture of ``height`` times ``width`` pixels.

    The scene has none to three things, with the relative frequencies ``counts``.
    """
    half_width, half_height = half_extent(height, width)
    grain = float(rng.uniform(0.01, 0.04)) if rng.random() < 0.1 else 0.0
    scene = Drawing(sample_background(rng, canvases, grounds), (), half_width, half_height, grain)
    count = int(rng.choice(len(counts), p=counts))
    things: tuple[Thing, ...] = ()
    for _ in range(count):
        thing = sample_thing(rng, scene, things)
        if thing is not None:
            things += (thing,)
    return replace(scene, things=things)


def _with_room(rng: np.random.Generator, scene: Drawing, motion: Motion) -> Drawing:
    """Return the scene with its first thing moved to a place from which it has space for the motion."""
    thing = scene.things[0]
    if motion.name not in DIRECTIONS or rng.random() < 0.15:
        return scene
    dx, dy = DIRECTIONS[motion.name]
    room_x, room_y = scene.half_width - thing.radius, scene.half_height - thing.radius
    need = MOVE[motion.speed] * 1.5  # seconds
    x, y = thing.x, thing.y
    if dx and dx * x > room_x - need:
        x = dx * float(rng.uniform(-room_x, max(room_x - need, -room_x)))
    if dy and dy * y > room_y - need:
        y = dy * float(rng.uniform(-room_y, max(room_y - need, -room_y)))
    first = replace(thing, x=x, y=y)
    others = tuple(
        t for t in scene.things[1:] if math.hypot(t.x - x, t.y - y) > 1.05 * (t.radius + first.radius)
    )
    return replace(scene, things=(first, *others))


def visible(scene: Drawing) -> tuple[list[str], list[str]]:
    """Return the motions of a thing and those of the camera that can be seen in a scene."""
    if not scene.things:
        return [], [] if scene.background.kind in PLAIN else list(CAMERA_MOTIONS)
    round_thing = scene.things[0].shape == "ball"
    return [name for name in OBJECT_MOTIONS if name != "spins" or not round_thing], list(CAMERA_MOTIONS)


def sample_motion(rng: np.random.Generator, scene: Drawing) -> Motion:
    """Return a random motion that can be seen in the scene."""
    if rng.random() < (0.1 if scene.things else 0.6):
        return Motion(STILL, "")
    of_thing, of_camera = visible(scene)
    if not of_camera:
        return Motion(STILL, "")
    names = of_thing if of_thing and rng.random() < 0.66 else of_camera
    return Motion(str(rng.choice(names)), sample_speed(rng))


def sample_speed(rng: np.random.Generator) -> str:
    """Return a random one of ``SPEEDS``."""
    return str(rng.choice(SPEEDS, p=[0.25, 0.5, 0.25]))


def sample_case(
    rng: np.random.Generator, height: int, width: int, canvases: int, counts: Sequence[float] = THING_COUNTS
) -> Case:
    """Return a random scene, a motion and its prompt; ``counts`` is as in ``sample_scene``."""
    scene = sample_scene(rng, height, width, canvases, counts)
    return make_case(rng, scene, sample_motion(rng, scene))


def make_case(rng: np.random.Generator, scene: Drawing, motion: Motion) -> Case:
    """Return a scene with space for a motion, and a random prompt for it."""
    if motion.name in OBJECT_MOTIONS:
        scene = _with_room(rng, scene, motion)
    return Case(scene, motion, write_prompt(rng, scene, motion))


def verb_of(motion: Motion) -> str:
    """Return the words for a motion, without its speed."""
    return f"moves {motion.name}" if motion.name in DIRECTIONS else motion.name


def write_prompt(rng: np.random.Generator, scene: Drawing, motion: Motion) -> str:
    """Return a random prompt for the motion. The colour is left out only if the scene has a single thing."""
    if motion.name in CAMERA_MOTIONS:
        words = ["the", "camera", motion.name]
    else:
        if motion.name == STILL and (not scene.things or rng.random() < 0.3):
            choices = ["", "", "nothing moves", "the camera stays still"]
            return choices[int(rng.integers(len(choices)))]
        thing = scene.things[0]
        subject = ["the", thing.colour, thing.shape]
        if len(scene.things) == 1 and rng.random() < 0.15:
            subject.pop(1)
        words = [*subject, verb_of(motion)]
    if motion.speed:
        words.append(motion.speed)
    if words[0] == "the" and rng.random() < 0.08:
        words = words[1:]
    return " ".join(words)

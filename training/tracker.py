"""The tracker, which tells what moved in a video by comparing it with every motion that is possible.

The picture was drawn by code, so each possible motion of each thing and of the camera can be drawn too, at
several strengths. The nearest one is what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from training.render import Renderer
from training.scenes import (
    CAMERA_MOTIONS,
    DIRECTIONS,
    GROWTH,
    MOVE_DISTANCE,
    OBJECT_MOTIONS,
    PAN,
    SPIN,
    STILL,
    ZOOM,
    Case,
    Motion,
    Scene,
)

AMOUNTS = (0.25, 0.4, 0.55, 0.75, 1.0, 1.3, 1.67, 2.1)
# A motion counts as seen between this share and this multiple of its named strength.
LEAST, MOST = 0.45, 2.2


@dataclass(frozen=True)
class Seen:
    """The motion seen in a video, its strength (1 is normal speed), its thing, and the error."""

    motion: str
    amount: float
    target: int
    error: float


def expected_amount(motion: Motion) -> float:
    """Return the strength of a motion relative to the same motion at normal speed."""
    if motion.name == STILL:
        return 0.0
    table = MOVE_DISTANCE if motion.name in DIRECTIONS else PAN
    table = {"grows": GROWTH, "shrinks": GROWTH, "spins": SPIN}.get(motion.name, table)
    if motion.name.startswith("zooms"):
        table = ZOOM
    return motion.amount * table[motion.speed] / table[""]


def shown_strength(case: Case, seen: Seen) -> float:
    """Return the strength of the named motion in a video, 1 as named; 0 if another motion was seen."""
    named = seen.motion == case.motion.name and (seen.target == 0 or seen.motion in CAMERA_MOTIONS)
    expected = expected_amount(case.motion)
    return seen.amount / expected if named and expected else 0.0


def possible(scene: Scene, amounts: tuple[float, ...]) -> Iterator[tuple[str, float, int]]:
    """Yield every motion that could be seen: its name, its strength, and the thing that moves."""
    yield STILL, 0.0, 0
    for amount in amounts:
        for name in CAMERA_MOTIONS:
            yield name, amount, 0
        for target, thing in enumerate(scene.things):
            for name in OBJECT_MOTIONS:
                if not (name == "spins" and thing.shape == "ball"):
                    yield name, amount, target


def read(
    renderer: Renderer,
    scene: Scene,
    pictures: torch.Tensor,
    frames: list[int],
    amounts: tuple[float, ...] = AMOUNTS,
    side: int = 64,
) -> Seen:
    """Return the motion nearest to pictures (3, T, H, W) in -1..1, which are a video's ``frames``."""
    height, width = pictures.shape[-2:]
    scale = side / math.sqrt(height * width)
    size = (round(height * scale), round(width * scale))
    small = F.interpolate(pictures.transpose(0, 1), size, mode="bilinear", antialias=True).transpose(0, 1)
    best = Seen(STILL, 0.0, 0, float("inf"))
    for name, amount, target in possible(scene, amounts):
        drawn = renderer.clip(scene, Motion(name, "", amount), frames, size, target=target)
        error = float((drawn - small).square().mean())
        if error < best.error:
            best = Seen(name, amount, target, error)
    return best


def observe(
    renderer: Renderer, scene: Scene, video: torch.Tensor, amounts: tuple[float, ...] = AMOUNTS
) -> Seen:
    """Return the motion nearest to a video (3, T, H, W) in -1..1, judged on its middle and last frame."""
    frames = [(video.shape[1] - 1) // 2, video.shape[1] - 1]
    return read(renderer, scene, video[:, frames], frames, amounts)


def agrees(case: Case, seen: Seen) -> bool:
    """Return whether the seen motion is the one that the prompt named, at about the named strength."""
    if seen.motion != case.motion.name:
        return False
    if case.motion.name == STILL:
        return True
    if case.motion.name in OBJECT_MOTIONS and seen.target != 0:
        return False
    # A thing that runs into the edge stops there: any strength that reaches it looks the same.
    return LEAST <= seen.amount / expected_amount(case.motion) <= MOST

"""The tracker, which finds the motion in a video by comparing the video with every possible motion.

The picture was drawn by code, so each possible motion of each thing and of the camera can be drawn too, at
several strengths. The nearest one counts as seen.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from training.render import Renderer
from training.scenes import (
    CAMERA_MOTIONS,
    DIRECTIONS,
    GROWTH,
    MOVE,
    OBJECT_MOTIONS,
    PAN,
    SPIN,
    STILL,
    ZOOM,
    Case,
    Drawing,
    Motion,
)

AMOUNTS = (0.25, 0.4, 0.55, 0.75, 1.0, 1.3, 1.67, 2.1)
# The steps in which the best of them is then refined. With a coarser last step, a pan could come nearer to a
# move over a plain ground than the move itself, and the two would not look the same.
FINER = (1.2, 1.1, 1.05, 1.025, 1.012, 1.006)
# Motions look the same if their pictures differ by less than two of 255 levels.
INVISIBLE = (4 / 255) ** 2
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
    table = MOVE if motion.name in DIRECTIONS else PAN
    table = {"grows": GROWTH, "shrinks": GROWTH, "spins": SPIN}.get(motion.name, table)
    if motion.name.startswith("zooms"):
        table = ZOOM
    return motion.amount * table[motion.speed] / table[""]


def shown_strength(case: Case, seen: Seen) -> float:
    """Return the strength of the named motion in a video, 1 as named; 0 if another motion was seen."""
    named = seen.motion == case.motion.name and (seen.target == 0 or seen.motion in CAMERA_MOTIONS)
    expected = expected_amount(case.motion)
    return seen.amount / expected if named and expected else 0.0


def possible(scene: Drawing) -> Iterator[tuple[str, int]]:
    """Yield the name of every visible motion of a scene, except standing still, and the thing that moves."""
    for name in CAMERA_MOTIONS:
        yield name, 0
    for target, thing in enumerate(scene.things):
        for name in OBJECT_MOTIONS:
            if not (name == "spins" and thing.shape == "ball"):
                yield name, target


@dataclass
class Reader:
    """A comparison of a video's pictures (3, T, h, w), of the times ``frames``, with all possible motions."""

    renderer: Renderer
    scene: Drawing
    pictures: torch.Tensor
    frames: list[int]

    def drawn(self, seen: Seen) -> torch.Tensor:
        """Return the frames (3, T, h, w) that the scene would show with a motion."""
        motion = Motion(seen.motion, "", seen.amount)
        size = (self.pictures.shape[2], self.pictures.shape[3])
        return self.renderer.clip(self.scene, motion, self.frames, size, target=seen.target)

    def at(self, motion: str, amount: float, target: int) -> Seen:
        """Return a motion with its error against the pictures."""
        seen = Seen(motion, amount, target, 0.0)
        return replace(seen, error=float((self.drawn(seen) - self.pictures).square().mean()))

    def nearest(self, motion: str, target: int, amounts: tuple[float, ...]) -> Seen:
        """Return a motion at the strength nearest to the pictures, which is near one of ``amounts``."""
        best = min((self.at(motion, amount, target) for amount in amounts), key=_error)
        for factor in FINER:
            others = (self.at(motion, best.amount * f, target) for f in (factor, 1 / factor))
            best = min(best, *others, key=_error)
        return best

    def read(self, amounts: tuple[float, ...]) -> list[Seen]:
        """Return the nearest motion and all that look the same as it."""
        found = [self.nearest(*kind, amounts) for kind in possible(self.scene)]
        found.append(self.at(STILL, 0.0, 0))
        best = self.drawn(min(found, key=_error))
        return [seen for seen in found if float((self.drawn(seen) - best).square().mean()) <= INVISIBLE]


def _error(seen: Seen) -> float:
    return seen.error


def read(
    renderer: Renderer,
    case: Case,
    pictures: torch.Tensor,
    frames: list[int],
    amounts: tuple[float, ...] = AMOUNTS,
    side: int = 64,
) -> Seen:
    """Return the motion nearest to pictures (3, T, H, W) in -1..1, which are a video's ``frames``.

    If several motions look the same, as a pan and a move do on a plain ground, it is the named one. If one of
    them is standing still, it is that one.
    """
    height, width = pictures.shape[-2:]
    scale = side / math.sqrt(height * width)
    size = (round(height * scale), round(width * scale))
    small = F.interpolate(pictures.transpose(0, 1), size, mode="bilinear", antialias=True).transpose(0, 1)
    alike = Reader(renderer, case.scene, small, frames).read(amounts)
    alike.sort(key=lambda seen: (seen.motion != STILL, not agrees(case, seen), seen.error))
    return alike[0]


def observe(
    renderer: Renderer, case: Case, video: torch.Tensor, amounts: tuple[float, ...] = AMOUNTS
) -> Seen:
    """Return the motion nearest to a video (3, T, H, W) in -1..1, judged on its middle and last frame."""
    frames = [(video.shape[1] - 1) // 2, video.shape[1] - 1]
    return read(renderer, case, video[:, frames], frames, amounts)


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

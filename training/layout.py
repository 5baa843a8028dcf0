"""The scenes of several clips as arrays of numbers, from which the renderer draws them all at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from training.scenes import BACKGROUNDS, SHAPES, Act, Background, Drawing, shown

MOST_THINGS = 3
NO_THING = -1


@dataclass
class ClipLayout:
    """What B clips of T frames show. Lengths are in units of the picture's side.

    Attributes:
        kinds: The backgrounds' kinds as indices of ``BACKGROUNDS`` (B).
        colours: The backgrounds' two colours (B, 2, 3) in 0..1.
        patterns: The backgrounds' angle, scale and phase (B, 3).
        canvases: The numbers of the backgrounds' bitmaps (B).
        views: The camera's shift in x and y and the width of its view (B, T, 3).
        shapes: The things' shapes as indices of ``SHAPES``, or ``NO_THING`` (B, 3).
        paints: The things' colours (B, 3, 3) in 0..1.
        places: The things' x, y, radius and angle (B, 3, T, 4).
        grain: The deviation of the pictures' grain (B).
    """

    kinds: np.ndarray
    colours: np.ndarray
    patterns: np.ndarray
    canvases: np.ndarray
    views: np.ndarray
    shapes: np.ndarray
    paints: np.ndarray
    places: np.ndarray
    grain: np.ndarray

    @property
    def still(self) -> np.ndarray:
        """Return for each clip whether its camera stands still (B)."""
        return (self.views == self.views[:, :1]).all(axis=(1, 2))

    def things(self) -> Iterator[tuple[int, str, np.ndarray]]:
        """Yield a thing's number, a shape and the clips with it, beginning with the lowest thing."""
        for number in reversed(range(MOST_THINGS)):
            for index, shape in enumerate(SHAPES):
                rows = np.flatnonzero(self.shapes[:, number] == index)
                if len(rows):
                    yield number, shape, rows

    def grounds(self) -> Iterator[tuple[str, bool, np.ndarray]]:
        """Yield a background's kind, whether the camera stands still, and the clips with both."""
        still = self.still
        for index, kind in enumerate(BACKGROUNDS):
            for stands in (True, False):
                rows = np.flatnonzero((self.kinds == index) & (still == stands))
                if len(rows):
                    yield kind, stands, rows


def _pattern(background: Background) -> tuple[float, float, float]:
    return background.angle, background.scale, background.phase


def lay_out(clips: Sequence[tuple[Drawing, Sequence[Act]]], frames: Sequence[float]) -> ClipLayout:
    """Return the layout of scenes of at most ``MOST_THINGS`` things, with their acts, at some frames."""
    count, length = len(clips), len(frames)
    shapes = np.full((count, MOST_THINGS), NO_THING)
    paints = np.zeros((count, MOST_THINGS, 3), np.float32)
    places = np.zeros((count, MOST_THINGS, length, 4), np.float32)
    views = np.zeros((count, length, 3), np.float32)
    for row, (scene, acts) in enumerate(clips):
        for number, thing in enumerate(scene.things):
            shapes[row, number] = SHAPES.index(thing.shape)
            paints[row, number] = thing.rgb
        for place, frame in enumerate(frames):
            things, view = shown(scene, acts, frame)
            views[row, place] = view.x, view.y, view.width
            for number, thing in enumerate(things):
                places[row, number, place] = thing.x, thing.y, thing.radius, thing.angle
    grounds = [scene.background for scene, _ in clips]
    return ClipLayout(
        kinds=np.array([BACKGROUNDS.index(ground.kind) for ground in grounds]),
        colours=np.array([ground.rgb for ground in grounds], np.float32),
        patterns=np.array([_pattern(ground) for ground in grounds], np.float32),
        canvases=np.array([ground.canvas for ground in grounds]),
        views=views,
        shapes=shapes,
        paints=paints,
        places=places,
        grain=np.array([scene.grain for scene, _ in clips]),
    )

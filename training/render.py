"""The renderer, which draws the scenes of ``training.scenes`` anti-aliased, at sub-pixel positions."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch.nn import functional as F

from training.layout import ClipLayout, lay_out
from training.scenes import Act, Case, Drawing, Motion, Thing

Device = torch.device | str

CANVAS_PIXELS = 448  # of bitmaps for pictures of side 128
CANVAS_HALF = 1.75  # a canvas shows the square from -1.75 to 1.75 sides
DIAMOND_WIDTH = 0.62


def pixel_grid(height: int, width: int, box: tuple[int, int, int, int] | None = None):
    """Return x and y of the pixel centres (h, w); ``box`` is the top, left, height and width of a crop."""
    side = math.sqrt(height * width)
    top, left, rows, columns = box or (0, 0, height, width)
    y = (torch.arange(top, top + rows) + 0.5 - height / 2) / side
    x = (torch.arange(left, left + columns) + 0.5 - width / 2) / side
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    return grid_x, grid_y


def spectrum_noise(rng: np.random.Generator, size: int, slope: float, device: Device = "cpu") -> torch.Tensor:
    """Return band-limited noise (size, size) with amplitude falling as frequency to the power ``-slope``."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]) * size
    amplitude = 1.0 / np.maximum(frequency, 2.5) ** slope
    amplitude *= frequency < size / 7
    spectrum = amplitude * (rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape))
    noise = torch.fft.irfft2(torch.from_numpy(spectrum).to(device, torch.complex64), s=(size, size))
    return noise / (noise.std() + 1e-9)


def noise_canvas(rng: np.random.Generator, size: int, device: Device) -> torch.Tensor:
    """Return a cloudy or rough coloured texture (size, size, 3) in 0..1."""
    layers = [spectrum_noise(rng, size, float(rng.uniform(1.1, 2.2)), device) for _ in range(3)]
    mix = rng.normal(0, 0.10, (3, 3)) * rng.uniform(0.2, 1.2) + rng.uniform(0.04, 0.16) * np.array(
        [[1], [0], [0]]
    )
    base, weights = (
        torch.tensor(v, dtype=torch.float32, device=device) for v in (rng.uniform(0.15, 0.85, 3), mix)
    )
    return (base + torch.stack(layers, -1) @ weights).clamp(0, 1)


def leaves_canvas(rng: np.random.Generator, size: int, device: Device) -> torch.Tensor:
    """Return overlapping shaded patches (size, size, 3) with the statistics of photographs."""
    axis = (torch.arange(size, device=device) + 0.5) / size * 2 * CANVAS_HALF - CANVAS_HALF
    y, x = torch.meshgrid(axis, axis, indexing="ij")

    def colour(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    image = (colour(rng.uniform(0.2, 0.8, 3)) + torch.stack([0.15 * x, 0.1 * y, -0.1 * y], -1)).clamp(0, 1)
    palette = rng.uniform(0.05, 0.95, (5, 3))
    radii = np.sort(np.exp(rng.uniform(math.log(0.08), math.log(0.7), int(rng.integers(30, 140)))))
    for radius in radii[::-1].tolist():
        cx, cy = rng.uniform(-CANVAS_HALF, CANVAS_HALF, 2).tolist()
        angle = rng.uniform(0, math.pi)
        u = (x - cx) * math.cos(angle) + (y - cy) * math.sin(angle)
        v = ((y - cy) * math.cos(angle) - (x - cx) * math.sin(angle)) * rng.uniform(0.7, 2.5)
        distance = torch.hypot(u, v) if rng.random() < 0.6 else torch.maximum(u.abs(), v.abs())
        alpha = ((radius - distance) * size / (2 * CANVAS_HALF) / rng.uniform(1, 4) + 0.5).clamp(0, 1)[
            ..., None
        ]
        patch = colour(np.clip(palette[rng.integers(5)] + rng.normal(0, 0.08, 3), 0, 1))
        shade = 1 + rng.normal(0, 0.25) * u[..., None] / radius
        image = torch.lerp(image, (patch * shade).clamp(0, 1), alpha)
    grain = spectrum_noise(rng, size, float(rng.uniform(0.9, 1.6)), device)[..., None]
    return (image + rng.uniform(0, 0.05) * grain).clamp(0, 1)


def make_canvases(seed: int, count: int, size: int = CANVAS_PIXELS, device: Device = "cpu") -> torch.Tensor:
    """Draw bitmaps for backgrounds, uint8 (2 * count, 3, size, size): the noises, then the leaves."""
    rng = np.random.default_rng(seed)
    images = [draw(rng, size, device) for draw in (noise_canvas, leaves_canvas) for _ in range(count)]
    return torch.stack([(image * 255).byte().permute(2, 0, 1) for image in images])


@lru_cache(maxsize=4)
def canvases(seed: int, count: int, size: int = CANVAS_PIXELS) -> torch.Tensor:
    """Return the bitmaps of a seed, which are drawn once per process."""
    return make_canvases(seed, count, size)


class Renderer:
    """A renderer of scenes; ``bitmaps`` (2n, 3, size, size) are the textures of its backgrounds.

    It draws on the device of the bitmaps.
    """

    def __init__(self, bitmaps: torch.Tensor) -> None:
        self.bitmaps = bitmaps
        self.device = bitmaps.device
        self.count = bitmaps.shape[0] // 2

    def draw(
        self, layout: ClipLayout, size: tuple[int, int], box: tuple[int, int, int, int] | None = None
    ) -> torch.Tensor:
        """Return pixels (B, 3, T, h, w) in -1..1 of a layout; ``box`` is as in ``pixel_grid``."""
        grid_x, grid_y = (axis.to(self.device) for axis in pixel_grid(*size, box))
        pixel = 1 / math.sqrt(size[0] * size[1])
        shift_x, shift_y, zoom = self._tensor(layout.views)[..., None, None].unbind(2)
        x, y = grid_x * zoom + shift_x, grid_y * zoom + shift_y
        image = x.new_empty(len(x), 3, *x.shape[1:])
        for kind, still, rows in layout.grounds():
            seen = slice(0, 1) if still else slice(None)
            image[rows] = self._ground(kind, layout, rows, x[rows, seen], y[rows, seen])
        for number, shape, rows in layout.things():
            place = self._tensor(layout.places[rows, number])[..., None, None]
            distance = signed_distance(shape, place.unbind(2), x[rows], y[rows])
            alpha = (0.5 - distance / (pixel * zoom[rows])).clamp_(0, 1)
            paint = self._tensor(layout.paints[rows, number])[:, :, None, None, None]
            image[rows] = torch.lerp(image[rows], paint, alpha.unsqueeze(1))
        for row in np.flatnonzero(layout.grain):
            generator = torch.Generator().manual_seed(int(layout.grain[row] * 1e6))
            grain = torch.randn(image.shape[-2:], generator=generator).to(self.device)
            image[row] += float(layout.grain[row]) * grain
        return image.clamp_(0, 1).mul_(2).sub_(1)

    def clip(
        self,
        scene: Drawing,
        motion: Motion,
        frames: range | list[float],
        size: tuple[int, int],
        box: tuple[int, int, int, int] | None = None,
        target: int = 0,
    ) -> torch.Tensor:
        """Return pixels (3, T, h, w) in -1..1 of a scene; ``target`` is the thing that moves."""
        return self.draw(lay_out([(scene, [Act(motion, target)])], frames), size, box)[0]

    def story(
        self, scene: Drawing, acts: Sequence[Act], frames: Sequence[float], size: tuple[int, int]
    ) -> torch.Tensor:
        """Return pixels (3, T, h, w) in -1..1 of a scene with acts."""
        return self.draw(lay_out([(scene, acts)], frames), size)[0]

    def case(self, case: Case, frames: range | list[float], size: tuple[int, int]) -> torch.Tensor:
        """Return pixels (3, T, h, w) in -1..1 of a case."""
        return self.clip(case.scene, case.motion, frames, size)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _ground(
        self, kind: str, layout: ClipLayout, rows: np.ndarray, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Return colours (n, 3, T, h, w) of backgrounds of one kind at scene coordinates (n, T, h, w)."""
        if kind in ("noise", "leaves"):
            return self._bitmaps(kind, layout, rows, x, y)
        pattern = self._tensor(layout.patterns[rows])[:, :, None, None, None]
        first, second = self._tensor(layout.colours[rows])[..., None, None, None].unbind(1)
        if kind == "hills":
            return _hills(pattern.unbind(1), x, y, first, second)
        mix = _mix(kind, pattern.unbind(1), x, y).unsqueeze(1)
        return first + (second - first) * mix

    def _bitmaps(
        self, kind: str, layout: ClipLayout, rows: np.ndarray, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        angle, _, phase = layout.patterns[rows].T
        quarter = (phase * 8).astype(int)
        mirror, swap = (self._tensor(quarter & bit > 0)[:, None, None, None] for bit in (1, 2))
        x = torch.where(mirror, -x, x)
        x, y = torch.where(swap, y, x), torch.where(swap, x, y)
        grid = (torch.stack([x, y], -1) / CANVAS_HALF).flatten(1, 2)
        chosen = layout.canvases[rows] % self.count + (self.count if kind == "leaves" else 0)
        # The order of the channels triples the number of textures.
        roll = (angle * 3 / (2 * math.pi)).astype(int) % 3
        order = self._tensor((np.arange(3) - roll[:, None]) % 3)
        bitmaps = self.bitmaps[self._tensor(chosen)[:, None], order].float().div_(255)
        colours = F.grid_sample(bitmaps, grid, padding_mode="reflection", align_corners=False)
        return colours.unflatten(2, x.shape[1:3])


def _hills(
    pattern: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor, sky: torch.Tensor, land: torch.Tensor
) -> torch.Tensor:
    """Return colours (n, 3, T, h, w) of a sky that brightens downwards, a sun and two ridges of hills."""
    angle, scale, phase = pattern
    turn = 2 * math.pi * phase
    image = torch.lerp(sky, sky + 0.5 * (1 - sky), (0.5 + y).clamp(0, 1).unsqueeze(1))
    sun = torch.hypot(x - 0.4 * angle.cos(), y + 0.3) - 0.3 * scale
    image = torch.lerp(image, 1 - 0.3 * (1 - sky), (0.5 - 80 * sun).clamp(0, 1).unsqueeze(1))
    for distance, level, brightness in ((1.0, 0.12, 0.9), (0.0, 0.3, 0.65)):
        wave = 2 * math.pi * x / (0.5 + scale + 0.3 * distance) + angle + 2 * distance
        ridge = level + (0.12 - 0.1 * scale) * (wave.sin() + 0.4 * (2.3 * wave + turn).sin())
        colour = brightness * torch.lerp(land, sky, 0.4 * distance)
        image = torch.lerp(image, colour, (80 * (y - ridge) + 0.5).clamp(0, 1).unsqueeze(1))
    return image.clamp(0, 1)


def _mix(kind: str, pattern: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the second colour's share, 0..1, of a background at ``x`` and ``y``.

    ``pattern`` is the background's angle, scale and phase, of shapes that broadcast with ``x``.
    """
    angle, scale, phase = pattern
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    turn = 2 * math.pi * phase
    if kind == "solid":
        return torch.zeros_like(x)
    if kind == "gradient":
        return (along + 0.5).clamp(0, 1)
    if kind == "radial":
        return torch.exp(-((x - 0.3 * turn.cos()) ** 2 + (y - 0.3 * turn.sin()) ** 2) / (2 * scale))
    if kind == "stripes":
        return (torch.sin(2 * math.pi * along / scale + turn) * 6 * scale + 0.5).clamp(0, 1)
    if kind == "waves":
        bend = 0.06 * torch.sin(2 * math.pi * across / (1.5 * scale))
        return 0.5 + 0.5 * torch.sin(2 * math.pi * (along + bend) / scale + turn)
    product = torch.sin(2 * math.pi * along / scale + turn) * torch.sin(2 * math.pi * across / scale)
    return (product * 8 * scale + 0.5).clamp(0, 1)


def mask_of(thing: Thing, size: tuple[int, int]) -> torch.Tensor:
    """Return a mask (H, W) of the pixels that a thing covers."""
    place = torch.tensor([thing.x, thing.y, thing.radius, thing.angle])
    return signed_distance(thing.shape, place, *pixel_grid(*size)) < 0


def signed_distance(
    shape: str, place: Sequence[torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Return the distance to the edge of a thing at ``x`` and ``y``, negative inside.

    ``place`` is the thing's x, y, radius and angle, of shapes that broadcast with ``x``.
    """
    centre_x, centre_y, radius, angle = place
    across, down = x - centre_x, y - centre_y
    c, s = angle.cos(), angle.sin()
    u, v = across * c + down * s, down * c - across * s
    if shape == "ball":
        return torch.hypot(u, v) - radius
    if shape == "square":
        return torch.maximum(u.abs(), v.abs()) - 0.86 * radius
    if shape == "triangle":
        side = torch.maximum(u.abs() * math.cos(math.pi / 6) - v * 0.5, v)
        return side - 0.58 * radius
    slant = math.hypot(1, DIAMOND_WIDTH)
    return (u.abs() + v.abs() * DIAMOND_WIDTH - DIAMOND_WIDTH * radius) / slant

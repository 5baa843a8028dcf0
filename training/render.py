"""The renderer, which draws the scenes of ``training.scenes`` anti-aliased, at sub-pixel positions."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch.nn import functional as F

from training.scenes import Background, Case, Motion, Scene, Thing, camera, moved

CANVAS_PIXELS = 448
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


def spectrum_noise(rng: np.random.Generator, size: int, slope: float) -> np.ndarray:
    """Return band-limited noise (size, size) with amplitude falling as frequency to the power ``-slope``."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]) * size
    amplitude = 1.0 / np.maximum(frequency, 2.5) ** slope
    amplitude *= frequency < size / 7
    spectrum = amplitude * (rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape))
    noise = np.fft.irfft2(spectrum, s=(size, size))
    return noise / (noise.std() + 1e-9)


def noise_canvas(rng: np.random.Generator) -> np.ndarray:
    """Return a cloudy or rough coloured texture (size, size, 3) in 0..1."""
    layers = [spectrum_noise(rng, CANVAS_PIXELS, float(rng.uniform(1.1, 2.2))) for _ in range(3)]
    mix = rng.normal(0, 0.10, (3, 3)) * rng.uniform(0.2, 1.2) + rng.uniform(0.04, 0.16) * np.array(
        [[1], [0], [0]]
    )
    return np.clip(rng.uniform(0.15, 0.85, 3) + np.stack(layers, -1) @ mix, 0, 1)


def leaves_canvas(rng: np.random.Generator) -> np.ndarray:
    """Return overlapping shaded patches (size, size, 3) with the statistics of photographs."""
    size = CANVAS_PIXELS
    axis = (np.arange(size) + 0.5) / size * 2 * CANVAS_HALF - CANVAS_HALF
    y, x = np.meshgrid(axis, axis, indexing="ij")
    image = np.clip(rng.uniform(0.2, 0.8, 3) + np.stack([0.15 * x, 0.1 * y, -0.1 * y], -1), 0, 1)
    palette = rng.uniform(0.05, 0.95, (5, 3))
    for radius in np.sort(np.exp(rng.uniform(math.log(0.08), math.log(0.7), int(rng.integers(30, 140)))))[
        ::-1
    ]:
        cx, cy = rng.uniform(-CANVAS_HALF, CANVAS_HALF, 2)
        angle = rng.uniform(0, math.pi)
        u = (x - cx) * math.cos(angle) + (y - cy) * math.sin(angle)
        v = ((y - cy) * math.cos(angle) - (x - cx) * math.sin(angle)) * rng.uniform(0.7, 2.5)
        distance = np.hypot(u, v) if rng.random() < 0.6 else np.maximum(abs(u), abs(v))
        alpha = np.clip((radius - distance) * size / (2 * CANVAS_HALF) / rng.uniform(1, 4) + 0.5, 0, 1)[
            ..., None
        ]
        colour = np.clip(palette[rng.integers(5)] + rng.normal(0, 0.08, 3), 0, 1)
        shade = 1 + rng.normal(0, 0.25) * u[..., None] / radius
        image = image * (1 - alpha) + np.clip(colour * shade, 0, 1) * alpha
    grain = spectrum_noise(rng, size, float(rng.uniform(0.9, 1.6)))[..., None]
    return np.clip(image + rng.uniform(0, 0.05) * grain, 0, 1)


def make_canvases(seed: int, count: int) -> torch.Tensor:
    """Draw bitmaps for backgrounds, uint8 (2 * count, 3, size, size): the noises, then the leaves."""
    rng = np.random.default_rng(seed)
    images = [noise_canvas(rng) for _ in range(count)] + [leaves_canvas(rng) for _ in range(count)]
    return torch.from_numpy((np.stack(images) * 255).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()


@lru_cache(maxsize=4)
def canvases(seed: int, count: int) -> torch.Tensor:
    """Return the bitmaps of a seed, which are drawn once per process."""
    return make_canvases(seed, count)


class Renderer:
    """A renderer of scenes; ``bitmaps`` (2n, 3, size, size) are the textures of its backgrounds."""

    def __init__(self, bitmaps: torch.Tensor) -> None:
        self.bitmaps = bitmaps
        self.count = bitmaps.shape[0] // 2

    def background(self, background: Background, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return colours (3, ...) of a background at scene coordinates ``x`` and ``y`` (...)."""
        if background.kind in ("noise", "leaves"):
            return self._bitmap(background, x, y)
        first, second = (torch.tensor(c).view(3, *[1] * x.ndim) for c in background.rgb)
        along = x * math.cos(background.angle) + y * math.sin(background.angle)
        across = y * math.cos(background.angle) - x * math.sin(background.angle)
        scale, turn = background.scale, 2 * math.pi * background.phase
        if background.kind == "solid":
            mix = torch.zeros_like(x)
        elif background.kind == "gradient":
            mix = (along + 0.5).clamp(0, 1)
        elif background.kind == "radial":
            mix = torch.exp(
                -((x - 0.3 * math.cos(turn)) ** 2 + (y - 0.3 * math.sin(turn)) ** 2) / (2 * scale)
            )
        elif background.kind == "stripes":
            mix = (torch.sin(2 * math.pi * along / scale + turn) * 6 * scale + 0.5).clamp(0, 1)
        elif background.kind == "waves":
            bend = 0.06 * torch.sin(2 * math.pi * across / (1.5 * scale))
            mix = 0.5 + 0.5 * torch.sin(2 * math.pi * (along + bend) / scale + turn)
        else:
            product = torch.sin(2 * math.pi * along / scale + turn) * torch.sin(2 * math.pi * across / scale)
            mix = (product * 8 * scale + 0.5).clamp(0, 1)
        return first + (second - first) * mix

    def _bitmap(self, background: Background, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        index = background.canvas % self.count + (self.count if background.kind == "leaves" else 0)
        quarter = int(background.phase * 8)
        if quarter & 1:
            x = -x
        if quarter & 2:
            x, y = y, x
        shape = x.shape
        grid = (torch.stack([x, y], -1) / CANVAS_HALF).view(1, -1, shape[-1], 2)
        bitmap = self.bitmaps[index].float().div_(255).unsqueeze(0)
        colours = F.grid_sample(bitmap, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        colours = colours[0].view(3, *shape)
        # The order of the channels triples the number of textures.
        return colours.roll(int(background.angle * 3 / (2 * math.pi)) % 3, 0)

    def clip(
        self,
        scene: Scene,
        motion: Motion,
        frames: range | list[float],
        size: tuple[int, int],
        box: tuple[int, int, int, int] | None = None,
        target: int = 0,
    ) -> torch.Tensor:
        """Return pixels (3, T, h, w) in -1..1 of a scene; ``target`` is the thing that moves."""
        grid_x, grid_y = pixel_grid(*size, box)
        pixel = 1 / math.sqrt(size[0] * size[1])
        views = [camera(motion, frame) for frame in frames]
        fixed = all(view == (0.0, 0.0, 1.0) for view in views)
        if fixed:
            still = self.background(scene.background, grid_x, grid_y).unsqueeze(1)
            image = still.expand(-1, len(views), -1, -1).clone()
        else:
            shift_x, shift_y, zoom = (torch.tensor(v).view(-1, 1, 1) for v in zip(*views, strict=True))
            image = self.background(scene.background, grid_x * zoom + shift_x, grid_y * zoom + shift_y)
        for index in reversed(range(len(scene.things))):
            for t, frame in enumerate(frames):
                thing = (
                    moved(scene.things[index], motion, frame, scene)
                    if index == target
                    else scene.things[index]
                )
                dx, dy, zoom_at = views[t]
                _draw(image[:, t], thing, grid_x * zoom_at + dx, grid_y * zoom_at + dy, pixel * zoom_at)
        if scene.grain:
            generator = torch.Generator().manual_seed(int(scene.grain * 1e6))
            image = image + scene.grain * torch.randn(image.shape[-2:], generator=generator)
        return image.clamp_(0, 1).mul_(2).sub_(1)

    def case(self, case: Case, frames: range | list[float], size: tuple[int, int]) -> torch.Tensor:
        """Return pixels (3, T, h, w) in -1..1 of a case."""
        return self.clip(case.scene, case.motion, frames, size)


def signed_distance(thing: Thing, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the distance (h, w) to the edge of a thing, negative inside."""
    u, v = x - thing.x, y - thing.y
    if thing.angle:
        c, s = math.cos(thing.angle), math.sin(thing.angle)
        u, v = u * c + v * s, v * c - u * s
    radius = thing.radius
    if thing.shape == "ball":
        return torch.hypot(u, v) - radius
    if thing.shape == "square":
        return torch.maximum(u.abs(), v.abs()) - 0.86 * radius
    if thing.shape == "triangle":
        side = torch.maximum(u.abs() * math.cos(math.pi / 6) - v * 0.5, v)
        return side - 0.58 * radius
    slant = math.hypot(1, DIAMOND_WIDTH)
    return (u.abs() + v.abs() * DIAMOND_WIDTH - DIAMOND_WIDTH * radius) / slant


def _draw(image: torch.Tensor, thing: Thing, x: torch.Tensor, y: torch.Tensor, pixel: float) -> None:
    """Blend a thing into ``image`` (3, h, w) in place."""
    alpha = (0.5 - signed_distance(thing, x, y) / pixel).clamp_(0, 1)
    colour = torch.tensor(thing.rgb).view(3, 1, 1)
    image.lerp_(colour.expand_as(image), alpha.expand_as(image))

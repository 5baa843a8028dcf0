"""The figures of one generated video: its motion, the shapes of its things, and unwanted changes."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from training.render import Renderer, pixel_grid, signed_distance
from training.scenes import CAMERA_MOTIONS, DIRECTIONS, STILL, Case, Drawing, Motion, moved
from training.tracker import Seen, agrees, observe

# The least distance of two colours in -1..1 at which thing and ground are distinguished; the most is 3.5.
LEAST_CONTRAST = 0.5
# The least overlap of a thing with itself in the true clip at which the overlap can be measured.
MEASURABLE = 0.9
# No part of a thing is further from its centre than this many times its radius.
REACH = 2.0


@dataclass
class Outcome:
    """The outcome of one generated video: its case, the motion seen in it, and its figures.

    A figure that the case cannot have is ``None``.

    Attributes:
        first_psnr: The PSNR of the first frame to the true one, in dB.
        last_psnr: The PSNR of the last frame to the true one, in dB.
        flicker: The mean change between frames, of 255, where nothing should change.
        rest: The PSNR of the last frame to the picture, in dB, where nothing should change.
        overlap: The overlap of a moved thing's shape in the last frame with that in the first.
        join: The change across a join of sections divided by the mean change near it.
        thumbs: The first, middle and last frame and the true last one (4, 3, H, W).
    """

    case: Case
    mode: str
    sections: int
    size: tuple[int, int]
    seen: Seen
    right: bool
    first_psnr: float
    last_psnr: float
    flicker: float | None
    rest: float | None
    overlap: float | None
    join: float | None
    thumbs: torch.Tensor


def psnr(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the PSNR in dB of pictures in -1..1."""
    return float(10 * torch.log10(4 / (first - second).square().mean().clamp_min(1e-9)))


def still_background(case: Case, size: tuple[int, int], frames: int) -> torch.Tensor | None:
    """Return a mask (H, W) of the pixels that no moving thing covers; None if the camera moves."""
    if case.motion.name in CAMERA_MOTIONS:
        return None
    mask = torch.ones(size, dtype=torch.bool)
    if case.motion.name == STILL or not case.scene.things:
        return mask
    x, y = pixel_grid(*size)
    for frame in range(0, frames, 6):
        thing = moved(case.scene.things[0], case.motion, frame)
        place = torch.tensor([thing.x, thing.y, thing.radius, thing.angle])
        mask &= signed_distance(thing.shape, place, x, y) > 0.08
    return mask


def thing_mask(renderer: Renderer, scene: Drawing, frame: torch.Tensor) -> torch.Tensor:
    """Return a mask (H, W) of the pixels at which a frame (3, H, W) shows the scene's first thing.

    A pixel belongs to the thing if its colour is nearer to the thing's colour than to the scene without the
    thing. The mean over neighbouring pixels is used, so that grain has no effect; far spots are left out.
    """
    thing = scene.things[0]
    size = (frame.shape[1], frame.shape[2])
    without = Drawing(scene.background, scene.things[1:], scene.half_width, scene.half_height)
    ground = renderer.clip(without, Motion(STILL), [0], size)[:, 0]
    away = torch.tensor(thing.rgb).mul(2).sub(1).view(3, 1, 1) - ground
    length = away.square().sum(0)
    share = (((frame - ground) * away).sum(0) / length.clamp_min(1e-6)).clamp(0, 1)
    share = share * (length.sqrt() > LEAST_CONTRAST)
    mask = F.avg_pool2d(share[None, None], 3, stride=1, padding=1)[0, 0] > 0.5
    if mask.any():
        x, y = pixel_grid(*size)
        mask &= torch.hypot(x - x[mask].median(), y - y[mask].median()) < REACH * thing.radius
    return mask


def centre(mask: torch.Tensor) -> torch.Tensor:
    """Return the mean row and column of a mask (H, W)."""
    return torch.nonzero(mask).float().mean(0)


def overlap_of(before: torch.Tensor, after: torch.Tensor) -> float:
    """Return the intersection over union of two masks (H, W) after aligning their centres."""
    if not before.any() or not after.any():
        return 0.0
    height, width = before.shape
    down, right = (centre(after) - centre(before)).tolist()
    rows = (torch.arange(height) + 0.5 - down) * 2 / height - 1
    columns = (torch.arange(width) + 0.5 - right) * 2 / width - 1
    grid = torch.stack([columns.expand(height, width), rows.view(-1, 1).expand(height, width)], -1)
    shifted = F.grid_sample(before.float()[None, None], grid[None], align_corners=False)[0, 0] > 0.5
    return float((shifted & after).sum() / (shifted | after).sum())


def shape_overlap(renderer: Renderer, case: Case, video: torch.Tensor) -> float | None:
    """Return the overlap of a moved thing's shapes in the first and last frame.

    It is None if no thing was moved, or if the thing cannot be measured even in the true clip, because the
    ground behind it has its colour.
    """
    if case.motion.name not in DIRECTIONS:
        return None

    def overlap(pictures: torch.Tensor) -> float:
        return overlap_of(*(thing_mask(renderer, case.scene, pictures[:, index]) for index in (0, -1)))

    truth = renderer.case(case, [0, video.shape[1] - 1], (video.shape[2], video.shape[3]))
    return overlap(video) if overlap(truth) >= MEASURABLE else None


def judge(renderer: Renderer, case: Case, size: tuple[int, int], mode: str, sections: int, video) -> Outcome:
    """Return all figures of one video (3, T, H, W) in -1..1."""
    frames = video.shape[1]
    truth = renderer.case(case, [0, frames - 1], size)
    seen = observe(renderer, case, video)
    steps = (video[:, 1:] - video[:, :-1]).abs().mul(127.5)
    mask = still_background(case, size, frames)
    if mask is not None and not mask.any():
        mask = None
    join = None
    if sections > 1:
        per_step = steps.mean(dim=(0, 2, 3))
        near = torch.cat([per_step[30:36], per_step[37:43]]).mean()
        # Changes below a quarter of a grey level are invisible and count as that.
        join = float(per_step[36].clamp_min(0.25) / near.clamp_min(0.25))
    return Outcome(
        case=case,
        mode=mode,
        sections=sections,
        size=size,
        seen=seen,
        right=agrees(case, seen),
        first_psnr=psnr(video[:, 0], truth[:, 0]),
        last_psnr=psnr(video[:, -1], truth[:, -1]),
        flicker=None if mask is None else float(steps[:, :, mask].mean()),
        rest=None if mask is None else psnr(video[:, -1][:, mask], truth[:, 0][:, mask]),
        overlap=shape_overlap(renderer, case, video),
        join=join,
        thumbs=torch.stack([video[:, 0], video[:, frames // 2], video[:, -1], truth[:, 1]]),
    )

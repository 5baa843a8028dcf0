"""What is known of a family of models without torch: its numbers, its shapes and its plan of sections.

The other half of a family, which works on tensors, is a module with the functions of `job.work.Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from diffusers_helper.families.buckets import nearest_bucket
from diffusers_helper.families.packing import FPS, WINDOW, Mode, SectionPlan, looped, plan_sections


class Length(Protocol):
    """What determines the sections of a video, such as a request."""

    @property
    def seconds(self) -> float: ...

    @property
    def mode(self) -> Mode: ...

    @property
    def is_loop(self) -> bool: ...

    @property
    def is_from_words(self) -> bool: ...


@dataclass(frozen=True, slots=True, eq=False)  # each is one of a kind, and may be a key
class Family:
    """The half of a family of models that plans, in integers.

    Attributes:
        name: The name, under which `pipeline` finds the other half.
        shrink: The pixels per latent along each side.
        fps: The frames per second.
        latent_frames: The frames per latent frame.
        shape: Returns the height and width of a video, in pixels, from those of a picture, the side of a
            square of the same area, and the number of which both are multiples.
        plan: Returns the sections of a video of so many seconds, in an order, without one that closes a loop.
        from_words: The same for a video without a start picture; None if the models need one.
        magnitudes: The magnitudes of its published models by their order; see `step_caches.nearest`.
    """

    name: str
    channels: int
    shrink: int
    window: int
    fps: int
    latent_frames: int
    shape: Callable[[int, int, int, int], tuple[int, int]]
    plan: Callable[[float, Mode], SectionPlan]
    from_words: Callable[[float, Mode], SectionPlan] | None = None
    magnitudes: Mapping[Mode, tuple[float, ...]] = field(default_factory=dict[Mode, tuple[float, ...]])

    @property
    def section_seconds(self) -> float:
        return self.latent_frames * self.window / self.fps

    def sections(self, length: Length) -> SectionPlan:
        plan = ((length.is_from_words and self.from_words) or self.plan)(length.seconds, length.mode)
        return looped(plan) if length.is_loop else plan


# The magnitudes of FramePack I2V and F1 at 25 steps and 640 pixels, as measured by the authors of MagCache
# (Zehong-Ma/MagCache, MagCache4FramePack; Apache License 2.0)
_MAGNITUDES: dict[Mode, tuple[float, ...]] = {
    "inverted": (
        1.0, 1.26562, 1.23438, 1.03125, 1.02344, 1.03906, 1.01562, 1.03906, 1.05469, 1.02344, 1.03906,
        0.99609, 1.03125, 1.02344, 1.01562, 1.02344, 1.00781, 1.04688, 0.98828, 1.0, 1.00781, 0.98828,
        0.94141, 0.94141, 0.78906,
    ),
    "forward": (
        1.0, 1.25781, 1.08594, 1.02344, 1.00781, 1.02344, 1.00781, 1.02344, 1.05469, 0.99609, 1.03906,
        1.00781, 1.01562, 1.00781, 1.02344, 1.01562, 0.98047, 1.05469, 0.98047, 0.96875, 1.03125, 0.97266,
        0.9375, 0.96484, 0.78516,
    ),
}  # fmt: skip
# FramePack's transformers were trained with sections of nine latent frames alone, so the window is fixed.
FRAMEPACK = Family(
    "framepack", channels=16, shrink=8, window=WINDOW, fps=FPS, latent_frames=4, shape=nearest_bucket,
    plan=lambda seconds, mode: plan_sections(seconds, mode=mode),
    from_words=lambda seconds, mode: plan_sections(seconds, mode=mode, has_picture=False),
    magnitudes=_MAGNITUDES,
)  # fmt: skip
FAMILIES = {FRAMEPACK.name: FRAMEPACK}

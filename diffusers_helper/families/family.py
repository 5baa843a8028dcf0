"""What is known of a family of models without torch: its numbers, its shapes and its plan of sections.

The other half of a family, which works on tensors, is a module with the functions of `job.work.Work`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diffusers_helper.families.buckets import nearest_bucket
from diffusers_helper.families.packing import FPS, WINDOW, Mode, SectionPlan, plan_sections


@dataclass(frozen=True, slots=True)
class Family:
    """The half of a family of models that plans, in integers.

    Attributes:
        name: The name, under which `pipeline` finds the other half.
        channels: The channels of its latents.
        shrink: The pixels per latent along each side.
        window: The latent frames that a section makes.
        fps: The frames per second.
        latent_frames: The frames per latent frame.
        shape: Returns the height and width of a video, in pixels, from those of a picture, the side of a
            square of the same area, and the number of which both are multiples.
        plan: Returns the sections of a video of so many seconds, in an order.
    """

    name: str
    channels: int
    shrink: int
    window: int
    fps: int
    latent_frames: int
    shape: Callable[[int, int, int, int], tuple[int, int]]
    plan: Callable[[float, Mode], SectionPlan]

    @property
    def section_seconds(self) -> float:
        """Return the time that a section adds to the video."""
        return self.latent_frames * self.window / self.fps


# FramePack's transformers were trained with sections of nine latent frames alone, so the window is fixed.
FRAMEPACK = Family(
    "framepack", channels=16, shrink=8, window=WINDOW, fps=FPS, latent_frames=4, shape=nearest_bucket,
    plan=lambda seconds, mode: plan_sections(seconds, mode=mode),
)  # fmt: skip
FAMILIES = {FRAMEPACK.name: FRAMEPACK}

"""What is known of a family of models without torch: its numbers, its shapes and its plan of sections.

The other half of a family, which works on tensors, is a module with the functions of `job.work.Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from diffusers_helper.families import helios
from diffusers_helper.families.buckets import Buckets, buckets, nearest_bucket
from diffusers_helper.families.packing import (
    FPS,
    HISTORY,
    WINDOW,
    Mode,
    SectionPlan,
    frames_of,
    led_by,
    looped,
    plan_one_frame,
    plan_sections,
)
from diffusers_helper.placed import Placed
from diffusers_helper.weights.recognition import HELIOS_PARTS, PARTS


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

    @property
    def placed(self) -> Sequence[Placed]: ...

    @property
    def one_frame(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How a prompt is put to the large text encoder.

    Attributes:
        template: The text around the prompt, with `{}` in its place.
        head_tokens: The tokens of the template before the prompt, which are cut off after the encoding.
        most_tokens: The most tokens of a prompt.
        padded_tokens: The tokens that the transformer reads of any prompt; 0 for those of the prompt alone.
    """

    template: str
    head_tokens: int
    most_tokens: int
    padded_tokens: int = 0


# HunyuanVideo's template for videos
_TEMPLATE = (
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
)


@dataclass(frozen=True, slots=True, eq=False)  # each is one of a kind, and may be a key
class Family:
    """The half of a family of models that plans, in integers.

    Attributes:
        name: The name, under which `pipeline` finds the other half.
        shrink: The pixels per latent along each side.
        fps: The frames per second.
        latent_frames: The frames per latent frame.
        networks: The class of each network, by the name of its part.
        parts: The names of all its parts.
        offered: Returns the shapes of its videos, height first, in pixels, given the side of a square of the
            same area and the number of which both sides are multiples.
        reading: How a prompt is put to the large text encoder.
        tail_frames: The last frames that are seen of a video that is continued.
        vae_precision: The format in which its VAE computes by default; "" for that of the card.
        suits: Returns the settings that suit the model in a folder, where the folder does not name its own.
        lacks, ignored: The settings that cannot be used with its models, and those that have no effect.
        plan: Returns the sections of a video of so many seconds, in an order, without one that closes a loop.
        from_words: The same for a video without a start picture; None if the models need one.
        led_by: Returns a plan with the places of sections that begin with a picture of their own; None if its
            models take no such pictures.
        one_frame: Returns the plan of a single picture at a time after the start picture; None if its models
            make none.
        licence: A sentence on the licence of its published weights.
        magnitudes: The magnitudes of its published models by their order; see `step_caches.nearest`.
    """

    name: str
    channels: int
    shrink: int
    window: int
    fps: int
    latent_frames: int
    networks: Mapping[str, str]
    parts: tuple[str, ...]
    offered: Buckets
    reading: PromptReading
    tail_frames: int
    plan: Callable[[float, Mode], SectionPlan]
    from_words: Callable[[float, Mode], SectionPlan] | None = None
    led_by: Callable[[SectionPlan, Sequence[int]], SectionPlan] | None = None
    one_frame: Callable[[int], SectionPlan] | None = None
    vae_precision: str = ""
    suits: Callable[[Path], Mapping[str, Any]] = lambda folder: {}
    lacks: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    licence: str = ""
    magnitudes: Mapping[Mode, tuple[float, ...]] = field(default_factory=dict[Mode, tuple[float, ...]])

    def shape(self, height: int, width: int, side: int, multiple: int) -> tuple[int, int]:
        """Return the height and width of a video in pixels, given those of a picture and as in `offered`."""
        return nearest_bucket(height, width, side, multiple, self.offered)

    @property
    def section_seconds(self) -> float:
        return self.latent_frames * self.window / self.fps

    def sections(self, length: Length) -> SectionPlan:
        if length.one_frame and self.one_frame:
            return self.one_frame(length.one_frame)
        plan = ((length.is_from_words and self.from_words) or self.plan)(length.seconds, length.mode)
        if length.placed and self.led_by:
            plan = self.led_by(plan, [one.place(self.section_seconds) for one in length.placed])
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
    "framepack", channels=16, shrink=8, window=WINDOW, fps=FPS, latent_frames=4, offered=buckets,
    networks={
        "transformer": "HunyuanVideoFramepackTransformer3DModel", "vae": "AutoencoderKLHunyuanVideo",
        "text_encoder": "LlamaModel", "text_encoder_2": "CLIPTextModel", "image_encoder": "SiglipVisionModel",
    },
    parts=PARTS,
    reading=PromptReading(_TEMPLATE, 95, 256), tail_frames=frames_of(HISTORY),
    plan=lambda seconds, mode: plan_sections(seconds, mode=mode),
    from_words=lambda seconds, mode: plan_sections(seconds, mode=mode, has_picture=False),
    led_by=led_by, one_frame=plan_one_frame, magnitudes=_MAGNITUDES,
    licence="Its weights descend from HunyuanVideo, whose Tencent Hunyuan Community License grants no rights "
    "in the European Union, the United Kingdom and South Korea.",
)  # fmt: skip
HELIOS = Family(
    "helios", channels=16, shrink=8, window=helios.WINDOW, fps=helios.FPS, latent_frames=4,
    offered=helios.shapes,
    networks={
        "transformer": "HeliosTransformer3DModel", "vae": "AutoencoderKLWan",
        "text_encoder": "UMT5EncoderModel",
    },
    parts=HELIOS_PARTS,
    reading=PromptReading("{}", 0, helios.MAX_TEXT_TOKENS, helios.MAX_TEXT_TOKENS),
    tail_frames=helios.TAIL_SECTIONS * helios.SECTION_FRAMES,
    plan=helios.plan, from_words=helios.plan, vae_precision="fp32", suits=helios.suits,
    lacks=("end_image", "pictures", "one_frame", "lora"), ignored=("guidance",),
    licence="Its weights may be used under the Apache License 2.0.",
)  # fmt: skip
FAMILIES = {family.name: family for family in (FRAMEPACK, HELIOS)}

"""What is known of a family of models without torch: its numbers, its shapes and its plan of sections.

The other half of a family, which works on tensors, is a module with the functions of `job.work.Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from diffusers_helper.families.buckets import Buckets, nearest_bucket
from diffusers_helper.families.networks import FamilyNetwork, LayerNames, PublishedModel, SmallDecoder
from diffusers_helper.families.packing import Mode, SectionPlan, looped
from diffusers_helper.placed import Placed


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


@dataclass(frozen=True, slots=True, eq=False)  # each is one of a kind, and may be a key
class Family:
    """The half of a family of models that plans, in integers.

    Attributes:
        name: The name, under which `pipeline` finds the other half.
        shrink: The pixels per latent along each side.
        fps: The frames per second.
        latent_frames: The frames per latent frame.
        section_frames: The frames that each section adds to a video.
        networks: Its networks, by the names of their parts.
        parts: The names of all its parts.
        names: The names of the transformer's layers.
        signs: Texts that only the names of its transformer contain, as in `weights.recognition`.
        resembles: The models whose transformers have the same signs and lack these.
        fits: What the parts must have in common: a part, a number of its configuration, a sentence about it,
            and the value that it must have, or the part and the name of another number.
        published: Its published models.
        offered: Returns the shapes of its videos, height first, in pixels, given the side of a square of the
            same area and the number of which both sides are multiples.
        reading: How a prompt is put to the large text encoder.
        tail_frames: The last frames that are seen of a video that is continued.
        small_decoder: The decoder for previews that suits the published VAE.
        vae_precision: The format in which its VAE computes by default; "" for that of the card.
        schedulers: The classes of diffusers that its scheduler can be of; none for a family without one.
        refuses: Returns why a part with a configuration cannot be used; "" if it can.
        suits: Returns the settings that suit the model in a folder, where the folder does not name its own.
        lacks, ignored: The settings that cannot be used with its models, and those that change no pixel.
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
    section_frames: int
    networks: Mapping[str, FamilyNetwork]
    parts: tuple[str, ...]
    names: LayerNames
    signs: tuple[str, ...]
    resembles: tuple[str, ...]
    fits: tuple[tuple[str, str, str, Any], ...]
    published: tuple[PublishedModel, ...]
    offered: Buckets
    reading: PromptReading
    tail_frames: int
    plan: Callable[[float, Mode], SectionPlan]
    from_words: Callable[[float, Mode], SectionPlan] | None = None
    led_by: Callable[[SectionPlan, Sequence[int]], SectionPlan] | None = None
    one_frame: Callable[[int], SectionPlan] | None = None
    small_decoder: SmallDecoder | None = None
    vae_precision: str = ""
    schedulers: tuple[str, ...] = ()
    refuses: Callable[[str, Mapping[str, Any]], str] = lambda part, config: ""
    suits: Callable[[Path], Mapping[str, Any]] = lambda folder: {}
    lacks: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    licence: str = ""
    magnitudes: Mapping[Mode, tuple[float, ...]] = field(default_factory=dict[Mode, tuple[float, ...]])

    @property
    def title(self) -> str:
        """Return the name of its models, as their weights are recognised."""
        return self.networks["transformer"].model

    @property
    def guided_by(self) -> str:
        """Return the setting that says how closely its videos follow the words."""
        return "cfg" if "guidance" in self.ignored else "guidance"

    def shape(self, height: int, width: int, side: int, multiple: int) -> tuple[int, int]:
        """Return the height and width of a video in pixels, given those of a picture and as in `offered`."""
        return nearest_bucket(height, width, side, multiple, self.offered)

    @property
    def section_seconds(self) -> float:
        return self.section_frames / self.fps

    def sections(self, length: Length, cuts: Sequence[int] = ()) -> SectionPlan:
        """Return the plan of a video.

        Args:
            cuts: The places of the sections that begin with a draft of what comes before them.
        """
        if length.one_frame and self.one_frame:
            return self.one_frame(length.one_frame)
        plan = ((length.is_from_words and self.from_words) or self.plan)(length.seconds, length.mode)
        begins = [*(one.place(self.section_seconds) for one in length.placed), *cuts]
        if begins and self.led_by:
            plan = self.led_by(plan, begins)
        return looped(plan) if length.is_loop else plan

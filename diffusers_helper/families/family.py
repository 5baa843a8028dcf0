"""What is known of a family of models without torch: its numbers, its shapes, its networks and its sections.

The other half of a family, which works on tensors, is a module with the functions of `job.work.Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from diffusers_helper.families.packing import Mode, SectionPlan, led_by, looped, plan_one_frame


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How a prompt is put to the large text encoder.

    Attributes:
        template: The text around the prompt, with `{}` in its place.
        head_tokens: The tokens of the template before the prompt, which are cut off after the encoding.
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
        latent_frames: The frames per latent frame.
        section_frames: The frames that each section adds to a video.
        networks: Its networks, by the names of their parts.
        signs: Texts that only the names of its transformer contain, as in `weights.recognition`.
        resembles: The models whose transformers have the same signs and lack these.
        fits: What the parts must have in common: a part, a number of its configuration, a sentence about it,
            and the value that it must have, or the part and the name of another number.
        offered: Returns the shapes of its videos, height first, in pixels, given the side of a square of the
            same area and the number of which both sides are multiples.
        tail_frames: The last frames that are seen of a video that is continued.
        small_decoder: The decoder for previews that suits the published VAE.
        vae_precision: The format in which its VAE computes by default; "" for that of the card.
        schedulers: The classes of diffusers that its scheduler can be of; none for a family without one.
        refuses: Returns why a scheduler with a configuration cannot be used; "" if it can.
        suits: Returns the settings that suit the model in a folder, where the folder does not name its own.
        lacks, ignored: The settings that cannot be used with its models, and those that change no pixel.
        plan: Returns the sections of a video of so many seconds, in an order, without one that closes a loop;
            its keyword `has_picture` is False for a video without a start picture.
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
    plan: Callable[..., SectionPlan]
    small_decoder: SmallDecoder
    vae_precision: str = ""
    schedulers: tuple[str, ...] = ()
    refuses: Callable[[Mapping[str, Any]], str] = lambda config: ""
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
        """Return the height and width of a video in pixels, given those of a picture and as in `offered`.

        Its aspect ratio is the nearest one, by the least |h bw - w bh|; the later one on a tie.
        """
        offered = reversed(self.offered(side, multiple))
        return min(offered, key=lambda shape: abs(height * shape[1] - width * shape[0]))

    @property
    def section_seconds(self) -> float:
        return self.section_frames / self.fps

    def sections(self, request: Any, cuts: Sequence[int] = ()) -> SectionPlan:
        """Return the plan of the video that a `GenerationRequest` asks for.

        `cuts` are the places of the sections that begin with a draft of what comes before them.
        """
        if request.one_frame and "one_frame" not in self.lacks:
            return plan_one_frame(request.one_frame)
        plan = self.plan(request.seconds, request.mode, has_picture=not request.is_from_words)
        if begins := [*(one.place(self.section_seconds) for one in request.placed), *cuts]:
            plan = led_by(plan, begins)
        return looped(plan) if request.is_loop else plan


_SCALE_BYTES = 4
_GITHUB = "https://raw.githubusercontent.com"


def is_eight_bit(storage: str) -> bool:
    """Return whether a type of weights (`request.WEIGHT_TYPES`) takes a byte for each value."""
    return storage == "int8" or storage.startswith("fp8")


@dataclass(frozen=True, slots=True)
class Values:
    """The numbers of values of some tensors, by how they can be stored on the device.

    Attributes:
        castable: Those that are cast to 8 bit if the job asks for it.
        fixed_bytes: The size of those that always stay as they are, as the blocks of GGUF.
        rows: The number of rows that get a scale each if they are cast to int8.
    """

    plain: int = 0
    castable: int = 0
    eight_bit: int = 0
    fixed_bytes: int = 0
    rows: int = 0

    def __add__(self, other: Values) -> Values:
        return Values(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def num_bytes(self, width: int, storage: str) -> int:
        """Return the size on the device, given the bytes of a value in the type that computes.

        `storage` is the type of the weights that the job asks for (`request.WEIGHT_TYPES`).
        """
        castable = 1 if is_eight_bit(storage) else width
        eight_bit = 1 if storage == "default" else castable
        scales = self.rows * _SCALE_BYTES if storage == "int8" else 0
        values = self.plain * width + self.castable * castable + self.eight_bit * eight_bit
        return values + self.fixed_bytes + scales


@dataclass(frozen=True, slots=True)
class FamilyNetwork:
    """A network of a family, as its published models have it.

    Attributes:
        kind: The name of its class in diffusers or transformers.
        model: The model that its weights are recognised as.
        sizes: The numbers of its configuration that the plans need.
        config: The configuration, for weights that come as a single file.
        total, blocks: The values in all, and in each block that can be streamed.
        lists: The paths of the lists of these blocks, in the order in which they run.
        largest: The most values of a layer that can be cast to 8 bit.
        other_kinds: The names that other programs write for its class.
        in_fp32: The parts of names whose tensors are always in fp32: diffusers' list for the class, and the
            authors' names for the same.
        whole: The same for transformers' list, whose tensors are in fp32 if the others are in fp16, and never
            in 8 bit.
    """

    kind: str
    model: str
    sizes: tuple[str, ...]
    config: Mapping[str, Any] = field(hash=False)
    total: Values
    blocks: tuple[Values, ...] = ()
    lists: tuple[str, ...] = ()
    dtype: str = "float16"
    largest: int = 0
    other_kinds: tuple[str, ...] = ()
    in_fp32: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The names of a transformer's layers in files with weights or LoRAs, with `*` for the number of a block.

    Attributes:
        own: The layers as diffusers names them, by the beginning of their names.
        others: Other names, by the beginnings in the file and in diffusers, each with the layers that it
            stands for. An exclamation mark says that the two halves of the outputs, shift and scale, are
            exchanged.
        respelled: Endings of these other names that some programs spell in another way. The first one that
            a name has is replaced.
        precise: A pattern for layers that keep their precision if the others are cast to fp8: diffusers' list
            for the class, and the same layers by the other names.
        made_for: A pattern for what the metadata of a LoRA call the model.
        lora_of: The models that LoRAs for it are made for, in words.
    """

    own: Mapping[str, str]
    others: Mapping[tuple[str, str], Mapping[str, str]]
    respelled: tuple[tuple[str, str], ...] = ()
    precise: str = ""
    made_for: str = ""
    lora_of: str = ""


@dataclass(frozen=True, slots=True)
class SmallDecoder:
    """The published decoder for the previews of a family's latents; see `output.previews`.

    The checksum is git's, which the commit contains.
    """

    path: str
    checksum: str
    size: int = 22_642_902
    repository: str = "madebyollin/taehv"
    commit: str = "1f14a568f24bf8811e0a0ac601613e04fc1581e8"

    @property
    def address(self) -> str:
        return f"{_GITHUB}/{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published model. Revisions are pinned, so that a change on the hub can change no result.

    Attributes:
        variant: What distinguishes it from the family's other models, and `sign`, a pattern for its files.
        sources: The repository, the folder within it and the revision of each part.
        settings: What suits it, by the names of `registry.ModelInfo`.
    """

    name: str
    title: str
    variant: str
    sign: str
    sources: Mapping[str, tuple[str, str, str]]
    settings: Mapping[str, Any]


Buckets = Callable[[int, int], tuple[tuple[int, int], ...]]
REFERENCE_SIDE = 640
# FramePack's shapes at side 640, height first
REFERENCE_BUCKETS: tuple[tuple[int, int], ...] = (
    (416, 960), (448, 864), (480, 832), (512, 768), (544, 704), (576, 672), (608, 640),
    (640, 608), (672, 576), (704, 544), (768, 512), (832, 480), (864, 448), (960, 416),
)  # fmt: skip


def buckets(side: int = REFERENCE_SIDE, multiple: int = 32) -> tuple[tuple[int, int], ...]:
    """Return the distinct reference shapes (height, width), scaled to `side` and rounded to `multiple`."""

    def scaled(edge: int) -> int:
        unit = REFERENCE_SIDE * multiple
        return max(multiple, (2 * edge * side + unit) // (2 * unit) * multiple)

    return tuple(dict.fromkeys((scaled(h), scaled(w)) for h, w in REFERENCE_BUCKETS))

"""What is known of a family of models without torch: its numbers, its shapes, its networks and its sections.

The other half of a family, which works on tensors, is a module with the functions of `job.work.Work`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Self

from diffusers_helper.families.packing import (
    Mode,
    SectionPlan,
    plan_one_frame,
    split_at,
    with_closing_section,
)


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """How the large text encoder gets a prompt: the template, and its tokens before the prompt.

    `padded_tokens` are those that the transformer reads of any prompt; 0 for those of the prompt alone.
    """

    template: str
    head_tokens: int
    max_tokens: int
    padded_tokens: int = 0


# The component with a model's own LoRAs, which are always applied
LORA = "lora"
# The settings that only chains of clips have
OF_CLIPS = ("clip_frames", "carried_frames", "hold_colours")


_SCALE_BYTES = 4
_GITHUB = "https://raw.githubusercontent.com"


def is_eight_bit(weight_dtype: str) -> bool:
    return weight_dtype == "int8" or weight_dtype.startswith("fp8")


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """The numbers of values of some tensors, by how they can be stored on the device.

    `fixed_bytes` always stay as they are, as the blocks of GGUF; `rows` get a scale each in int8.
    """

    plain: int = 0
    castable: int = 0
    eight_bit: int = 0
    fixed_bytes: int = 0
    rows: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def num_bytes(self, value_bytes: int, weight_dtype: str) -> int:
        castable_bytes = 1 if is_eight_bit(weight_dtype) else value_bytes
        eight_bit_bytes = 1 if weight_dtype == "default" else castable_bytes
        scale_bytes = self.rows * _SCALE_BYTES if weight_dtype == "int8" else 0
        num_bytes = self.plain * value_bytes + self.fixed_bytes + scale_bytes
        return num_bytes + self.castable * castable_bytes + self.eight_bit * eight_bit_bytes


@dataclass(frozen=True, slots=True)
class FamilyNetwork:
    """A network of a family, as its published models have it.

    Attributes:
        class_name: The name of its class in diffusers or transformers.
        model: The model that its weights are recognised as.
        sizes: The entries of its configuration that the plans need.
        config: The configuration, for weights that come as a single file.
        total, blocks: The values in all, and in each block that can be streamed.
        block_lists: The paths of the lists of these blocks, in the order in which they run.
        largest_layer: The most values of a layer that can be cast to 8 bit.
        other_class_names: The names that other programs write for its class.
        keep_in_fp32: Parts of the names, in diffusers and elsewhere, of tensors that are always in fp32.
        keep_in_fp32_with_fp16: Those of tensors that are in fp32 if others are in fp16, and never in 8 bit.
    """

    class_name: str
    model: str
    sizes: tuple[str, ...]
    config: Mapping[str, Any] = field(hash=False)
    total: ParameterCounts
    blocks: tuple[ParameterCounts, ...] = ()
    block_lists: tuple[str, ...] = ()
    dtype: str = "float16"
    largest_layer: int = 0
    other_class_names: tuple[str, ...] = ()
    keep_in_fp32: tuple[str, ...] = ()
    keep_in_fp32_with_fp16: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The names of a transformer's layers in files with weights or LoRAs, with `*` for the number of a block.

    Attributes:
        layers: The layers as diffusers names them, by the beginning of their names.
        other_names: Other names, by the beginnings in the file and in diffusers, each with the layers that it
            stands for. An exclamation mark says that shift and scale, the halves of the outputs, are
            exchanged.
        respellings: Endings of these other names that some programs spell in another way. The first one that
            a name has is replaced.
        skip_casting_pattern: A pattern for layers that keep their precision if the others are cast to fp8:
            diffusers' list for the class, and the same layers by the other names.
        lora_metadata_pattern: A pattern for what the metadata of a LoRA call the model.
        lora_models: The models that LoRAs for it are made for, as text.
    """

    layers: Mapping[str, str]
    other_names: Mapping[tuple[str, str], Mapping[str, str]]
    respellings: tuple[tuple[str, str], ...] = ()
    skip_casting_pattern: str = ""
    lora_metadata_pattern: str = ""
    lora_models: str = ""


@dataclass(frozen=True, slots=True)
class SmallDecoder:
    path: str
    checksum: str
    size: int = 22_642_902
    repository: str = "madebyollin/taehv"
    commit: str = "1f14a568f24bf8811e0a0ac601613e04fc1581e8"

    @property
    def url(self) -> str:
        return f"{_GITHUB}/{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published model, with repository, folder and pinned revision of each component.

    Names of files that match `file_pattern` are of this `variant` of the family. `settings` are those of
    `registry.ModelInfo`.
    """

    name: str
    title: str
    variant: str
    file_pattern: str
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
    """Scale the reference shapes (height, width) to `side`, round them to `multiple`, and drop doubles."""

    def scaled(edge: int) -> int:
        unit = REFERENCE_SIDE * multiple
        return max(multiple, (2 * edge * side + unit) // (2 * unit) * multiple)

    return tuple(dict.fromkeys((scaled(h), scaled(w)) for h, w in REFERENCE_BUCKETS))


def _no_remark(height: int, width: int, **video: object) -> str:
    return ""


@dataclass(frozen=True, slots=True, eq=False)  # each is one of a kind, and may be a key
class Family:
    """The half of a family of models that plans, in integers.

    Attributes:
        name: The name, under which `pipeline` finds the other half.
        signs: Texts that only the names of its transformer's tensors contain; see `weights.recognition`.
        resembles: The models whose transformers have the same signs and lack these.
        requirements: What the components must have in common: a component, an entry of its configuration, a
            sentence about it, and its value, or the component and the entry that have the same value.
        buckets: Lists the shapes of its videos (height, width), given the side of a square of the same area
            and the number of which both sides are multiples.
        tail_frames: The last frames that are seen of a video that is continued.
        is_chain: Whether each section begins with the last decoded frames of the one before it.
        high_steps: Counts the steps, of so many with this shift, that the first of two transformers takes.
        vae_precision: The format in which its VAE computes by default; "" for that of the card.
        vae_tile: The side of the largest tiles that its VAE should work in where they fit; 0 for the card's.
        schedulers: The classes of diffusers that its scheduler can be of; none for a family without one.
        scheduler_fault: Says why a scheduler with a configuration cannot be used; "" if it can.
        default_settings: Reads from a model's folder which settings suit it.
        unsupported, ignored: The settings that its models cannot use, and those that change no pixel.
        plan: Plans the sections of a video of so many seconds, in an order, without one that closes a loop.
            Its keyword `has_picture` is False for a video without a start picture. A chain also gets the
            request's `clip_frames` and `carried_frames`.
        remark: Says what a user should know of a video (height, width) before its start; "" for nothing. Its
            keywords are `has_picture`, the number of `sections`, and the `times` of the model.
        mag_ratios: Those of its published models by their order; see `step_caches.nearest_interp`.
    """

    name: str
    channels: int
    spatial_compression: int
    fps: int
    temporal_compression: int
    networks: Mapping[str, FamilyNetwork]
    components: tuple[str, ...]
    layer_names: LayerNames
    signs: tuple[str, ...]
    resembles: tuple[str, ...]
    requirements: tuple[tuple[str, str, str, Any], ...]
    published: tuple[PublishedModel, ...]
    buckets: Buckets
    prompt_format: PromptFormat
    tail_frames: int
    plan: Callable[..., SectionPlan]
    small_decoder: SmallDecoder
    needs_picture: bool = False
    is_chain: bool = False
    high_steps: Callable[[int, float], int] = lambda steps, shift: steps
    vae_precision: str = ""
    vae_tile: int = 0
    schedulers: tuple[str, ...] = ()
    scheduler_fault: Callable[[Mapping[str, Any]], str] = lambda config: ""
    default_settings: Callable[[Path], Mapping[str, Any]] = lambda folder: {}
    unsupported: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    licence: str = ""
    remark: Callable[..., str] = _no_remark
    mag_ratios: Mapping[Mode, tuple[float, ...]] = field(default_factory=dict[Mode, tuple[float, ...]])

    @property
    def title(self) -> str:
        return self.networks["transformer"].model

    @property
    def guidance_setting(self) -> str:
        return "cfg" if "guidance" in self.ignored else "guidance"

    def nearest_bucket(self, height: int, width: int, side: int, multiple: int) -> tuple[int, int]:
        buckets = reversed(self.buckets(side, multiple))
        return min(buckets, key=lambda shape: abs(height * shape[1] - width * shape[0]))

    def plain_sections(self, request: Any, seconds: float | None = None) -> SectionPlan:
        sizes = {"clip_frames": request.clip_frames, "carried_frames": request.carried_frames}
        clips = sizes if self.is_chain else {}
        has_picture = not request.is_from_words
        return self.plan(seconds or request.seconds, request.mode, has_picture=has_picture, **clips)

    def sections(self, request: Any, cuts: Sequence[int] = ()) -> SectionPlan:
        """`cuts` are the video indices of the sections that begin with a draft of what comes before them."""
        if request.one_frame and "one_frame" not in self.unsupported:
            return plan_one_frame(request.one_frame)
        plan = self.plain_sections(request)
        starts = [picture.section_index(plan.section_seconds) for picture in request.timed_pictures]
        if starts or cuts:
            plan = split_at(plan, [*starts, *cuts])
        return with_closing_section(plan) if request.is_loop else plan

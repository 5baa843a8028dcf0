"""The plans of one video on cards of several sizes, also for a transformer in files of other formats.

They are for a user who wonders which card is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import GGUF_CAST_BYTES, Network, Weights, networks
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import AUTO, SETTINGS, WEIGHT_TYPES, GenerationRequest
from diffusers_helper.units import GB, duration, gb_text
from diffusers_helper.weights.gguf_file import LOADABLE, bytes_per_value

STORED = "as stored"
_PART = "transformer"
_WHOLE = "bf16"
_WIDTH = 2  # the bytes of a value in the type that computes
CARDS_GB = (8, 12, 16, 20, 24)
ARCH = "gfx1100"


def networks_by_format(info: ModelInfo) -> dict[Network, tuple[str, ...]]:
    """Return the transformer in each format that can be loaded, with the names of the formats of that size.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    default, found = SETTINGS["weight_dtype"].default, dict[Network, tuple[str, ...]]()
    types = {STORED: transformer_in(info, default)}
    others = [name for name in WEIGHT_TYPES if name not in (AUTO, default)]
    try:
        types |= {name: transformer_in(info, name, _WIDTH) for name in others}
        types |= {kind: _in_blocks(types[_WHOLE], kind) for kind in LOADABLE}
    except InputError:  # quantised weights, which are not known in any other type
        pass
    for name, network in types.items():
        found[network] = (*found.get(network, ()), name)
    return found


def transformer_in(info: ModelInfo, weight_dtype: str, width: int | None = None) -> Network:
    """Return the transformer of a copy whose files have weights of this type.

    Args:
        width: The bytes of a value in the type that computes; None for what the files suggest.

    Raises:
        InputError: If the weights cannot be cast.
        LongtakeError: If a local model's files cannot be read.
    """
    found = networks(info, on_cpu=False, dtype_bytes={_PART: width}, weight_dtype=weight_dtype)[_PART]
    return replace(found, file_bytes=found.weights.total_bytes)


def _in_blocks(whole: Network, kind: str) -> Network:
    """Return the network with all values in blocks of GGUF, given the one in 16 bit.

    Files keep biases and norms in a wider type, which are less than a thousandth of all values.
    """
    share = bytes_per_value(kind) / _WIDTH
    sizes = (round(share * size) for size in whole.weights.block_bytes)
    weights = Weights(_PART, round(share * whole.weights.total_bytes), tuple(sizes))
    # The largest layer makes shift, scale and gate twice, for the picture's tokens or the text's.
    inner = whole.config["num_attention_heads"] * whole.config["attention_head_dim"]
    cast_bytes = 6 * inner**2 * GGUF_CAST_BYTES
    return replace(whole, weights=weights, cast_bytes=cast_bytes, file_bytes=weights.total_bytes)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a plan does with the transformer's weights; its cap may be above the card's default.

    Attributes:
        streamed_bytes: The weights that each step copies to the device, in `copy_seconds`.
        host_bytes: The same weights as the files store them, which main memory should be able to hold.
        disk_bytes: The bytes that each step reads from the disk if it cannot.
    """

    cap_bytes: int
    preserved_bytes: int
    resident_bytes: int
    streamed_bytes: int
    copy_seconds: float
    host_bytes: int
    disk_bytes: int
    peak_bytes: int
    weight_dtype: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Return all of this as the cells of a table, with figures in GB."""
        dtype = STORED if self.weight_dtype == SETTINGS["weight_dtype"].default else self.weight_dtype
        before = self.cap_bytes, self.preserved_bytes, self.resident_bytes, self.streamed_bytes
        after = self.host_bytes, self.disk_bytes, self.peak_bytes
        seconds = duration(self.copy_seconds) if self.copy_seconds else "0"
        return (*map(gb_text, before), seconds, *map(gb_text, after), dtype)


@dataclass(frozen=True, slots=True)
class CardPlan:
    """The plan for one card.

    Attributes:
        default: The plan with the automatic preserved memory; None if nothing fits.
        fewest_copies: The plan with as little as the estimates allow; None if nothing fits.
    """

    card_gb: int
    cap_bytes: int
    default: Fit | None
    fewest_copies: Fit | None
    smallest_cap_bytes: int

    @property
    def fits(self) -> tuple[Fit, ...]:
        """Return the plans that a table shows: the default, and the other one if it keeps other weights."""
        default, other = self.default, self.fewest_copies
        if default is None or other is None:
            return ()
        return (default,) if other.resident_bytes == default.resident_bytes else (default, other)

    def short(self, fit: Fit | None) -> str:
        """Return the GB of weights on the device and streamed in each step, or the cap that would do."""
        if fit is None:
            return f"({gb_text(self.smallest_cap_bytes, round_up=True)})"
        return f"{gb_text(fit.resident_bytes)} + {gb_text(fit.streamed_bytes)}"


@dataclass(frozen=True, slots=True)
class FormatPlans:
    """The plans for a transformer whose file is in one format, or in one of several of the same size."""

    formats: tuple[str, ...]
    file_bytes: int
    cards: tuple[CardPlan, ...]


def plans_by_format(request: GenerationRequest, info: ModelInfo) -> list[FormatPlans]:
    """Return the plans of a video for each format of the transformer's file.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    request = replace(request, weight_dtype=SETTINGS["weight_dtype"].default)
    return [
        FormatPlans(names, network.file_bytes, tuple(plans_by_card(request, info, transformer=network)))
        for network, names in networks_by_format(info).items()
    ]


def plans_by_card(
    request: GenerationRequest, info: ModelInfo, transformer: Network | None = None
) -> list[CardPlan]:
    """Return the plans of a video on Radeon cards of these sizes, for the shape that needs most memory.

    Args:
        transformer: The transformer, if it is not that of the model's files.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    request, found = replace(request, vram_cap_gb=None, preserved_gb=None), list[CardPlan]()
    for size in CARDS_GB:
        profile = profile_for(Machine("rocm", ARCH, f"{size} GB", size * GB), {})
        plan = partial(plan_video, info=info, profile=profile, transformer=transformer)
        cap = profile.budget().cap_bytes
        try:
            usual = plan(request)
        except DoesNotFit as error:
            found.append(CardPlan(size, cap, None, None, error.smallest_cap_bytes))
            continue
        default, fewest = (
            Fit(
                one.job.budget.cap_bytes, one.job.preserved_bytes, one.job.stage("sample").resident_bytes,
                one.step_bytes, one.copy_seconds, one.waiting_bytes, one.waiting_bytes * len(request.prompts),
                one.job.peak_bytes, one.weight_dtype,
            )
            for one in (usual, plan(with_fewest_copies(request, usual)))
        )  # fmt: skip
        found.append(CardPlan(size, cap, default, fewest, usual.job.smallest_cap_bytes))
    return found


def with_fewest_copies(request: GenerationRequest, plan: VideoPlan) -> GenerationRequest:
    """Return a request that preserves as little memory as its plan, made before, says to be enough."""
    assert plan.fewest_copies is not None  # there were no shortages
    return replace(request, preserved_gb=round(plan.fewest_copies.budget.preserved_bytes / GB, 1))

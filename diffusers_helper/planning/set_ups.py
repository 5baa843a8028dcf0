"""The set-ups that a video can have: the best one for a card, and those for cards of several sizes.

A set-up is the file and the type of the transformer's weights, the preserved memory and the resolution, with
the plan that follows. The best one is found by this rule:

1. The resolution is the model's own, or the largest that fits.
2. The first set-up is taken whose copies are hidden: in a step, they take at most half as long as the card
   computes, or as an RTX 4090 does, for a card whose time is not known. The most precise weights come first,
   which are those of the largest file; for each file, the card's usual preserved memory comes before as
   little as the estimates allow.
3. If the copies of none are hidden, the set-up whose copies take least time is taken.

Weights that each pass has to copy are not rounded on the way, which would take longer than the copy.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from diffusers_helper.errors import InputError
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.models.sizes import GGUF_CAST_BYTES, Network, Weights, networks
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.cards.speeds import RTX_4090, Duration
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.video import VideoPlan, plan_video
from diffusers_helper.request import AUTO, SETTINGS, WEIGHT_TYPES, GenerationRequest
from diffusers_helper.units import GB, duration, gb_text
from diffusers_helper.weights.gguf_file import LOADABLE, bytes_per_value

CARDS_GB = (8, 12, 16, 20, 24)
ARCH = "gfx1100"
STORED = "as stored"
_TRANSFORMER = "transformer"
_DEFAULT, _SMALL, _WHOLE = SETTINGS["weight_dtype"].default, "int8", "bf16"
_WIDTH = 2  # the bytes of a value in the type that computes
_HIDDEN = 0.5

PlanOf = Callable[..., VideoPlan]
"""A function that plans a request for a model, whose `transformer` is not in its files if one is given."""


def _usual_and_fewest(
    request: GenerationRequest, info: ModelInfo, plan: PlanOf, transformer: Network | None
) -> Iterator[tuple[GenerationRequest, VideoPlan]]:
    """Plan a request as it is, and then with as little preserved memory as its plan says to be enough."""
    usual = plan(request, info, transformer=transformer)
    yield request, usual
    if usual.fewest_copies is not None:
        preserved_gb = round(usual.fewest_copies.budget.preserved_bytes / GB, 1)
        request = replace(request, preserved_gb=preserved_gb)
        yield request, plan(request, info, transformer=transformer)


@dataclass(frozen=True, slots=True)
class SetUp:
    request: GenerationRequest
    info: ModelInfo
    needs_copy: bool
    plan: VideoPlan

    @property
    def seconds(self) -> float:
        """The time of a step's copies. Weights that are rounded on the way take longer than any."""
        is_rounded = self.plan.step_bytes and self.request.weight_dtype != _DEFAULT
        return math.inf if is_rounded else self.plan.copy_seconds

    @property
    def computing(self) -> Duration:
        return self.plan.computing or RTX_4090.step(self.plan.work)

    @property
    def is_hidden(self) -> bool:
        return self.seconds <= _HIDDEN * self.computing.seconds

    @property
    def side(self) -> int:
        return self.request.resolution or self.info.side

    @property
    def settings(self) -> dict[str, str | int | float | None]:
        names = ("model", "weight_dtype", "preserved_gb", "resolution")
        return {name: getattr(self.request, name) for name in names}

    @property
    def reason(self) -> str:
        if not self.plan.step_bytes:
            return "Nothing is streamed in a step."
        if self.is_hidden:
            return f"A step computes for longer than it copies: {self.computing.words}."
        disk = " from the disk" if self.plan.disk_bytes else ""
        seconds = duration(self.seconds)
        return f"A step takes about {seconds} to copy{disk}; with these files, no set-up is faster."


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best set-up with the weights that are here, and a better one with a copy that can be written."""

    set_up: SetUp
    copy: SetUp | None

    @property
    def reasons(self) -> str:
        if self.copy is None:
            return self.set_up.reason
        seconds, name = duration(self.copy.seconds), self.copy.info.name
        return (
            f"{self.set_up.reason} With a file in int8, that would take about {seconds}; `longtake "
            f"models convert {name} --weight-dtype int8` writes one."
        )

    @property
    def words(self) -> str:
        best = self.set_up
        kinds = {_DEFAULT: "weights as they are stored", _SMALL: "weights rounded to int8"}
        sentences = (
            f"Recommended for this card: {best.info.title} at {best.side} pixels, "
            f"{kinds[best.request.weight_dtype]}, {gb_text(best.plan.job.preserved_bytes)} GB preserved.",
            best.plan.streaming,
            self.reasons,
        )
        return " ".join(filter(None, sentences))


def recommend(request: GenerationRequest, info: ModelInfo, plan: PlanOf) -> Recommendation:
    request = replace(request, resolution=None, preserved_gb=None)
    try:
        return _first_hidden(_set_ups(request, info, plan))
    except DoesNotFit as error:
        if not error.side:
            raise
        return _first_hidden(_set_ups(replace(request, resolution=error.side), info, plan))


def _first_hidden(set_ups: Iterator[SetUp]) -> Recommendation:
    """Choose the first set-up that hides its copies, and for which no copy of the weights has to be written.

    If there is none, choose the fastest without such a copy and, if it is faster, the fastest with one.
    """
    others = list[SetUp]()
    for set_up in set_ups:
        if set_up.is_hidden and not set_up.needs_copy:
            return Recommendation(set_up, None)
        others.append(set_up)
    best = min((set_up for set_up in others if not set_up.needs_copy), key=lambda set_up: set_up.seconds)
    copies = (set_up for set_up in others if set_up.needs_copy and set_up.seconds < best.seconds)
    return Recommendation(best, min(copies, key=lambda set_up: set_up.seconds, default=None))


def _set_ups(request: GenerationRequest, info: ModelInfo, plan: PlanOf) -> Iterator[SetUp]:
    for model, weight_dtype, copy in _weights_of(info):
        name = request.model if model is info else model.name
        own_request = replace(request, model=name, weight_dtype=weight_dtype)
        try:
            for planned_request, video_plan in _usual_and_fewest(own_request, model, plan, copy):
                yield SetUp(planned_request, model, copy is not None, video_plan)
        except DoesNotFit:
            if model is info and weight_dtype == _DEFAULT and copy is None:
                raise


def _weights_of(info: ModelInfo) -> Iterator[tuple[ModelInfo, str, Network | None]]:
    """Yield the ways to have a model's weights, the most precise first, with the type to round them to.

    The last one is a copy in int8 that can be written, with the network that its transformer will be.
    """
    yield info, _DEFAULT, None
    bases = ADDED_MODELS.bases()
    added = (ADDED_MODELS.find(name) for name, base in bases.items() if base == info.name)
    copies = [model.name for model in added if model is not None and model.copy]
    yield from ((find_model(name), _DEFAULT, None) for name in copies)
    try:
        small, whole = (transformer_in(info, name) for name in (_SMALL, _DEFAULT))
    except InputError:  # weights that cannot be cast
        return
    if small.file_bytes < whole.file_bytes:
        yield info, _SMALL, None
        if not copies:
            yield info, _DEFAULT, small


@dataclass(frozen=True, slots=True)
class Fit:
    """What a plan does with the transformer's weights; its cap may be above the card's default.

    Of `host_bytes`, the streamed weights in the files, each step reads `disk_bytes` if main memory cannot
    hold them.
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
        dtype = STORED if self.weight_dtype == _DEFAULT else self.weight_dtype
        before = self.cap_bytes, self.preserved_bytes, self.resident_bytes, self.streamed_bytes
        after = self.host_bytes, self.disk_bytes, self.peak_bytes
        seconds = duration(self.copy_seconds) if self.copy_seconds else "0"
        return (*map(gb_text, before), seconds, *map(gb_text, after), dtype)


@dataclass(frozen=True, slots=True)
class CardPlan:
    """The plans for a card with the automatic preserved memory and with as little as the estimates allow."""

    card_gb: int
    cap_bytes: int
    default: Fit | None
    fewest_copies: Fit | None
    smallest_cap_bytes: int

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The plans that a table shows: the default, and the other one if it keeps other weights."""
        default, other = self.default, self.fewest_copies
        if default is None or other is None:
            return ()
        return (default,) if other.resident_bytes == default.resident_bytes else (default, other)

    def short(self, fit: Fit | None) -> str:
        """The GB of weights on the device and streamed in each step, or the cap that would do."""
        if fit is None:
            return f"({gb_text(self.smallest_cap_bytes, round_up=True)})"
        return f"{gb_text(fit.resident_bytes)} + {gb_text(fit.streamed_bytes)}"


@dataclass(frozen=True, slots=True)
class FormatPlans:
    formats: tuple[str, ...]
    file_bytes: int
    cards: tuple[CardPlan, ...]


def plans_by_card(
    request: GenerationRequest, info: ModelInfo, transformer: Network | None = None
) -> list[CardPlan]:
    request = replace(request, vram_cap_gb=None, preserved_gb=None)
    return [_plan_on_card(size, request, info, transformer) for size in CARDS_GB]


def _plan_on_card(
    card_gb: int, request: GenerationRequest, info: ModelInfo, transformer: Network | None
) -> CardPlan:
    profile = profile_for(Machine("rocm", ARCH, f"{card_gb} GB", card_gb * GB), {})
    cap_bytes = profile.budget().cap_bytes
    plan_on_card = partial(plan_video, profile=profile)
    try:
        plans = [plan for _, plan in _usual_and_fewest(request, info, plan_on_card, transformer)]
    except DoesNotFit as error:
        return CardPlan(card_gb, cap_bytes, None, None, error.smallest_cap_bytes)
    usual, fewest = (
        Fit(
            plan.job.budget.cap_bytes, plan.job.preserved_bytes, plan.job.stage("sample").resident_bytes,
            plan.step_bytes, plan.copy_seconds, plan.waiting_bytes, plan.waiting_bytes * len(request.prompts),
            plan.job.peak_bytes, plan.weight_dtype,
        )
        for plan in plans
    )  # fmt: skip
    return CardPlan(card_gb, cap_bytes, usual, fewest, plans[0].job.smallest_cap_bytes)


def plans_by_format(request: GenerationRequest, info: ModelInfo) -> list[FormatPlans]:
    request = replace(request, weight_dtype=_DEFAULT)
    return [
        FormatPlans(names, network.file_bytes, tuple(plans_by_card(request, info, transformer=network)))
        for network, names in networks_by_format(info).items()
    ]


def networks_by_format(info: ModelInfo) -> dict[Network, tuple[str, ...]]:
    by_name = {STORED: transformer_in(info, _DEFAULT)}
    try:
        names = (name for name in WEIGHT_TYPES if name not in (AUTO, _DEFAULT))
        by_name |= {name: transformer_in(info, name, _WIDTH) for name in names}
        by_name |= {kind: _in_blocks(by_name[_WHOLE], kind) for kind in LOADABLE}
    except InputError:  # quantised weights, which are not known in any other type
        pass
    by_network = dict[Network, tuple[str, ...]]()
    for name, network in by_name.items():
        by_network[network] = (*by_network.get(network, ()), name)
    return by_network


def transformer_in(info: ModelInfo, weight_dtype: str, width: int | None = None) -> Network:
    network = networks(info, on_cpu=False, dtype_bytes={_TRANSFORMER: width}, weight_dtype=weight_dtype)
    return replace(network[_TRANSFORMER], file_bytes=network[_TRANSFORMER].weights.total_bytes)


def _in_blocks(whole: Network, kind: str) -> Network:
    share = bytes_per_value(kind) / _WIDTH
    sizes = (round(share * size) for size in whole.weights.block_bytes)
    weights = Weights(_TRANSFORMER, round(share * whole.weights.total_bytes), tuple(sizes))
    # The largest layer makes shift, scale and gate twice, for the picture's tokens or the text's.
    inner = whole.config["num_attention_heads"] * whole.config["attention_head_dim"]
    cast_bytes = 6 * inner**2 * GGUF_CAST_BYTES
    return replace(whole, weights=weights, cast_bytes=cast_bytes, file_bytes=weights.total_bytes)

"""The plans of one video on cards of several sizes, for a user who wonders which card is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.budget import Demand, DoesNotFit, JobPlan, plan_job
from diffusers_helper.planning.bus import Bus, bus_of
from diffusers_helper.planning.cards.formats import STORED, networks_by_format
from diffusers_helper.planning.estimates import largest_bucket
from diffusers_helper.planning.preserved import preserved_choice
from diffusers_helper.planning.profiles import Machine, Profile, profile_for
from diffusers_helper.planning.video import demands_for, host_share
from diffusers_helper.planning.weight_type import choose_weights
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import GB, duration, gb_text

CARDS_GB = (8, 12, 16, 20, 24)
ARCH = "gfx1100"


@dataclass(frozen=True, slots=True)
class Fit:
    """What a plan does with the transformer's weights.

    Attributes:
        cap_bytes: The cap, which is raised above the card's default if the video needs more.
        preserved_bytes: The memory that weights leave free.
        resident_bytes: The weights that stay on the device.
        streamed_bytes: The weights that each step copies to the device.
        copy_seconds: The time that these copies take on the link that such a card has, by assumption.
        host_bytes: The same weights as the files store them, which main memory should be able to hold.
        disk_bytes: The bytes that each step reads from the disk if it cannot.
        peak_bytes: The largest predicted use of device memory in any stage.
        weight_dtype: The type of the transformer's weights, which the plan has chosen if it was left open.
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
        card_gb: The size of the card.
        cap_bytes: The default cap there.
        default: The plan with the automatic preserved memory, which is the default; None if nothing fits.
        fewest_copies: The plan with as little as the estimates allow; None if nothing fits.
        smallest_cap_bytes: The smallest cap under which the video fits.
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

    @property
    def default_text(self) -> str:
        """Return the GB of weights on the device and streamed in each step, or the cap that would do."""
        return self._short(self.default)

    @property
    def fewest_copies_text(self) -> str:
        """Return the same for as little preserved memory as the estimates allow."""
        return self._short(self.fewest_copies)

    def _short(self, fit: Fit | None) -> str:
        if fit is None:
            return f"({gb_text(self.smallest_cap_bytes, up=True)})"
        return f"{gb_text(fit.resident_bytes)} + {gb_text(fit.streamed_bytes)}"


@dataclass(frozen=True, slots=True)
class FormatPlans:
    """The plans for a transformer whose file is in one format, or in one of several of the same size.

    Attributes:
        formats: The names of the formats.
        file_bytes: The size of the weights.
        cards: The plan for each card.
    """

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
    request: GenerationRequest,
    info: ModelInfo,
    sizes_gb: Sequence[int] = CARDS_GB,
    transformer: Network | None = None,
) -> list[CardPlan]:
    """Return the plans of a video on Radeon cards of these sizes, for the shape that needs most memory.

    Args:
        request: The settings of the video.
        info: The model.
        sizes_gb: The sizes of the cards in GB.
        transformer: The transformer, if it is not that of the model's files.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    request = replace(request, vram_cap_gb=None, preserved_gb=None)
    height, width = largest_bucket(request.resolution or info.side, info.multiple)
    profiles = [profile_for(Machine("rocm", ARCH, f"{size} GB", size * GB), {}) for size in sizes_gb]

    @cache  # the needs are the same on all of these cards
    def needs(request: GenerationRequest) -> tuple[Demand, ...]:
        return demands_for(request, info, profiles[0], height, width, transformer=transformer)

    @cache
    def host(request: GenerationRequest) -> Fraction:
        return host_share(request, info, profiles[0])

    def plan_card(size_gb: int, profile: Profile) -> CardPlan:
        budget, bus = profile.budget(), bus_of(profile.machine)
        chosen = choose_weights(request, budget, needs).request
        try:
            plan = plan_job(budget, needs(chosen))
        except DoesNotFit as error:
            return CardPlan(size_gb, budget.cap_bytes, None, None, error.smallest_cap_bytes)
        demand = next(one for one in needs(chosen) if one.vae_tile_px == plan.vae_tile_px)
        freed = preserved_choice(plan, demand).fewest_copies
        then = choose_weights(request, freed.budget, needs).request
        if then != chosen:
            freed = plan_job(freed.budget, needs(then))
        fits = _fit(plan, chosen, host(chosen), bus), _fit(freed, then, host(then), bus)
        return CardPlan(size_gb, budget.cap_bytes, *fits, plan.smallest_cap_bytes)

    return [plan_card(size, profile) for size, profile in zip(sizes_gb, profiles, strict=True)]


def _fit(plan: JobPlan, request: GenerationRequest, host: Fraction, bus: Bus | None) -> Fit:
    sample, texts = plan.stage("sample"), len(request.texts)
    streamed = sample.streamed_bytes
    waiting = int(streamed * host)
    return Fit(
        plan.budget.cap_bytes, plan.preserved_bytes, sample.resident_bytes, streamed * texts,
        bus.seconds(streamed * texts) if bus else 0.0, waiting, waiting * texts, plan.peak_bytes,
        request.weight_dtype,
    )  # fmt: skip

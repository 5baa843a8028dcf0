"""The plans of one video on cards of several sizes, for a person who wonders which card is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import Demand, DoesNotFit, JobPlan, plan_job
from diffusers_helper.planning.estimates import largest_bucket
from diffusers_helper.planning.job import demands_for
from diffusers_helper.planning.preserved import preserved_choice
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB

CARDS_GB = (8, 12, 16, 20, 24)
ARCH = "gfx1100"


@dataclass(frozen=True, slots=True)
class Fit:
    """What a plan does with the transformer's weights.

    Attributes:
        preserved_bytes: The memory that weights leave free.
        resident_bytes: The weights that stay on the device.
        streamed_bytes: The weights that each step copies to the device. Main memory has to hold them;
            otherwise, each step reads as much from the disk.
        peak_bytes: The largest predicted use of device memory in any stage.
    """

    preserved_bytes: int
    resident_bytes: int
    streamed_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class CardPlan:
    """The plan for one card.

    Attributes:
        card_gb: The size of the card.
        cap_bytes: The default cap there.
        default: The plan with the default of preserved memory; None if nothing fits.
        automatic: The plan with the automatic preserved memory; None if nothing fits.
        smallest_cap_bytes: The smallest cap under which the video fits.
    """

    card_gb: int
    cap_bytes: int
    default: Fit | None
    automatic: Fit | None
    smallest_cap_bytes: int


def plans_by_card(
    request: GenerationRequest, info: ModelInfo, sizes_gb: Sequence[int] = CARDS_GB
) -> list[CardPlan]:
    """Return the plans of a video on Radeon cards of these sizes, for the shape that needs most memory.

    Raises:
        LongtakeError: If a local model's files cannot be read.
    """
    request = replace(request, vram_cap_gb=None, preserved_gb=None)
    height, width = largest_bucket(request.resolution or info.side, info.multiple)
    texts, found = len(request.texts), list[CardPlan]()
    demands: tuple[Demand, ...] = ()
    for size in sizes_gb:
        profile = profile_for(Machine("rocm", ARCH, f"{size} GB", size * GB), {})
        demands = demands or demands_for(request, info, profile, height, width)
        budget = profile.budget()
        try:
            plan = plan_job(budget, demands)
        except DoesNotFit as error:
            found.append(CardPlan(size, budget.cap_bytes, None, None, error.smallest_cap_bytes))
            continue
        demand = next(one for one in demands if one.vae_tile_px == plan.vae_tile_px)
        choice = preserved_choice(plan, demand)
        automatic = _fit(choice.automatic if choice else plan, texts)
        fit = _fit(plan, texts)
        found.append(CardPlan(size, budget.cap_bytes, fit, automatic, plan.smallest_cap_bytes))
    return found


def _fit(plan: JobPlan, texts: int) -> Fit:
    sample = plan.stage("sample")
    return Fit(
        plan.budget.preserved_in_force, sample.resident_bytes, sample.streamed_bytes * texts, plan.peak_bytes
    )

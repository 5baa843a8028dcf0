"""The plan that a job begins with, for page, command line and engine, and the sentences on its limits."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diffusers_helper.errors import LongtakeError
from diffusers_helper.lora_choice import shown
from diffusers_helper.machine.local import Facts
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import Demand, DoesNotFit, JobPlan
from diffusers_helper.planning.estimates import largest_bucket
from diffusers_helper.planning.profiles import YOU, Profile
from diffusers_helper.planning.smaller_plans import Ladder, LearnedLevels
from diffusers_helper.planning.weight_type import choose_weights
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import GB, gb_text

_SIDE_STEP = 32  # between the resolutions that a refusal may name


@dataclass(frozen=True, slots=True)
class FirstPlan:
    """The plan that a job begins with.

    Attributes:
        request: The settings of the video, in which the type of the weights is known.
        demands: The job's needs for each size of tiles, the largest first.
        levels: The store of the level that such jobs have reached after shortages.
        ladder: The plan, with the smaller ones that can follow it.
        reason: A sentence that says why this type was chosen; empty if the request has named it.
    """

    request: GenerationRequest
    demands: Sequence[Demand]
    levels: LearnedLevels
    ladder: Ladder
    reason: str


Needs = Callable[[GenerationRequest, int, int], Sequence[Demand]]
"""A function that returns the result of `demands_for` for a request and the height and width of a video."""


def first_plan(
    request: GenerationRequest,
    info: ModelInfo,
    profile: Profile,
    height: int,
    width: int,
    needs: Needs,
    learned: Facts,
) -> FirstPlan:
    """Return the plan that a job begins with. It is the same on the page, on the command line and in a job.

    Args:
        height, width: The sides of the video in pixels.
        profile: The settings of the machine, with those of the request for the VAE (`profile_of`).
        learned: The levels stored after shortages in earlier jobs; the plan begins at the matching one.

    Raises:
        DoesNotFit: If no plan keeps within the cap. It names the largest resolution that does.
        LongtakeError: If the cap depends on the card's size, which only its driver knows.
    """
    budget = profile.budget(request.vram_cap_gb, request.preserved_gb)
    if not budget.cap_bytes:
        raise LongtakeError(
            "Only the driver knows how much memory this card has, so the plan is made when a video starts.",
            "Set `vram_cap_gb` to see a plan.",
        )

    def begin(height: int, width: int) -> FirstPlan:
        chosen = choose_weights(request, budget, lambda one: needs(one, height, width))
        levels = learned_levels(learned, chosen.request, info, profile, height, width)
        found = needs(chosen.request, height, width)
        return FirstPlan(chosen.request, found, levels, Ladder(budget, found, levels.read()), chosen.reason)

    def fits(side: int) -> bool:
        try:
            begin(*largest_bucket(side, info.multiple, info.family.offered))
        except DoesNotFit:
            return False
        return True

    try:
        return begin(height, width)
    except DoesNotFit as error:
        side = request.resolution or info.side
        sides = range(max(int(SETTINGS["resolution"].low), info.multiple), side, _SIDE_STEP)
        count = bisect(sides, 0, key=lambda one: 0 if fits(one) else 1)
        raise DoesNotFit(error.budget, error.demands, sides[count - 1] if count else 0) from None


def learned_levels(
    facts: Facts, request: GenerationRequest, info: ModelInfo, profile: Profile, height: int, width: int
) -> LearnedLevels:
    """Return the store of the level that jobs with this card, model, video size and cap have reached.

    The key contains the card's memory in whole GB, since the web process and the engine may read figures that
    differ slightly.
    """
    machine = profile.machine
    size = f" {round(machine.total_bytes / GB)} GB" if machine.kind == "rocm" and not machine.is_apu else ""
    cap = "the card's"
    if request.vram_cap_gb is not None or profile.cap_bytes.source == YOU:
        cap = str(profile.budget(request.vram_cap_gb).cap_bytes)
    model = info.folder or info.name
    # A level counts down from the largest tiles that such a job may use, so these settings belong to the key.
    vae = f"VAE {profile.vae_dtype.value}, tiles {request.vae_tile or 'auto'}{_others(request)}"
    lora = f", LoRA {shown(request.lora)}" if request.lora else ""
    return LearnedLevels(facts, f"{machine.card}{size}, {model}, {width}x{height}, cap {cap}, {vae}{lora}")


def _others(request: GenerationRequest) -> str:
    """Return further settings that the plan depends on, if they differ from their defaults."""
    names = ("vae_chunk", "vae_threshold", "weight_dtype", "step_cache")
    values = {name: getattr(request, name) for name in names}
    return "".join(f", {name} {value}" for name, value in values.items() if value != SETTINGS[name].default)


def limit_notes(job: JobPlan, profile: Profile) -> list[str]:
    """Return sentences on limits that give way: a default cap that is raised, and preserved memory."""
    notes, budget, default = list[str](), job.budget, profile.cap_bytes
    cap, total = budget.cap_bytes, budget.total_bytes
    if budget.most_bytes and cap > default.value:
        notes.append(
            f"The default cap of {gb_text(default.value)} GB is too small for this video, which gets "
            f"{gb_text(cap, up=True)} GB. {gb_text(total - cap)} of {gb_text(total)} GB stay free for other "
            f"programs, instead of {gb_text(total - default.value)} GB."
        )
    if job.preserved_bytes < budget.preserved_bytes:
        notes.append(
            f"Of the {gb_text(budget.preserved_bytes)} GB to preserve, {gb_text(job.preserved_bytes)} GB are "
            f"preserved under the cap of {gb_text(cap, up=True)} GB, since some weights have to stay on the "
            f"device. {gb_text(job.stage('sample').streamed_bytes)} GB are streamed in each pass."
        )
    return notes

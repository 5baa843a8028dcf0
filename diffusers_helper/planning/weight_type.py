"""The automatic choice of the type that a transformer's weights have on the device.

The choice follows from the card's memory plan, and not from its arithmetic: every layer computes in 16 or 32
bit, also on cards that could compute in fp8, so a smaller type is only a way of storing weights. int8 is as
small as fp8 and more precise. It pays if it keeps all blocks on the device. If blocks are streamed, each of
them is rounded again in every pass, which takes the processor much longer than copying it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diffusers_helper.errors import InputError
from diffusers_helper.planning.budget import Budget, Demand, DoesNotFit, JobPlan, plan_job
from diffusers_helper.request import AUTO, SETTINGS, GenerationRequest
from diffusers_helper.units import gb_text

_SMALL = "int8"


@dataclass(frozen=True, slots=True)
class WeightChoice:
    """A request whose type of weights is known.

    Attributes:
        request: The request, in which no type is left to the machine.
        reason: A sentence that says why this type was chosen; empty if the request has named it.
    """

    request: GenerationRequest
    reason: str = ""


def choose_weights(
    request: GenerationRequest, budget: Budget, demands_of: Callable[[GenerationRequest], Sequence[Demand]]
) -> WeightChoice:
    """Return the request with the type that the budget suggests, if it leaves the type to the machine.

    Args:
        budget: The memory that the job may use.

    Raises:
        LongtakeError: If `demands_of` raises it for the type of the files.
    """
    if request.weight_dtype != AUTO:
        return WeightChoice(request)
    stored = replace(request, weight_dtype=SETTINGS["weight_dtype"].default)
    small = replace(request, weight_dtype=_SMALL)
    whole = _plan(budget, demands_of(stored))
    if whole and not _streamed(whole):
        return WeightChoice(stored, _stays("all of the transformer stays on the device"))
    try:
        needs = demands_of(small)
    except InputError:  # the only refusal that the type of the files does not meet
        return WeightChoice(stored, _stays("they are in GGUF or have scales"))
    if whole is None:  # if int8 does not fit either, the refusal names the smaller cap that it needs
        return WeightChoice(small, "The weights are rounded to int8, because they do not fit otherwise.")
    rounded = _plan(budget, needs)
    before = _streamed(whole)
    after = before if rounded is None else _streamed(rounded)
    if not after:
        return WeightChoice(
            small,
            "The weights are rounded to int8, because all of the transformer then stays on the device; "
            f"otherwise, {gb_text(before)} GB would be streamed in each pass.",
        )
    if after >= before:
        return WeightChoice(stored, _stays("int8 would not be smaller"))
    return WeightChoice(
        stored,
        _stays(
            f"in int8, {gb_text(after)} GB would still be streamed in each pass, and be rounded each time; a "
            "copy in int8, which python -m app models convert writes, needs no rounding"
        ),
    )


def _stays(reason: str) -> str:
    return f"The weights keep the type of the files, because {reason}."


def _plan(budget: Budget, demands: Sequence[Demand]) -> JobPlan | None:
    try:
        return plan_job(budget, demands)
    except DoesNotFit:
        return None


def _streamed(plan: JobPlan) -> int:
    return plan.stage("sample").streamed_bytes

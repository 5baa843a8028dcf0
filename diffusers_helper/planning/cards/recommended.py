"""The set-up that suits a card: the file and type of the weights, the preserved memory and the resolution.

The rule:

1. The resolution is the model's own, or the largest that fits.
2. The first set-up is taken whose copies are hidden: in a step, they take at most half as long as the card
   computes, or as an RTX 4090 does, for a card whose time is not known. The most precise weights come first,
   which are those of the largest file; for each file, the card's usual preserved memory comes before as
   little as the estimates allow.
3. If the copies of none are hidden, the set-up whose copies take least time is taken.

Weights that each pass has to copy are not rounded on the way, which would take longer than the copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from diffusers_helper.errors import InputError
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.cards.by_size import transformer_in, with_fewest_copies
from diffusers_helper.planning.cards.speeds import RTX_4090, Duration
from diffusers_helper.planning.video import VideoPlan
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import duration, gb_text

_HIDDEN = 0.5
_STORED, _SMALL = SETTINGS["weight_dtype"].default, "int8"

PlanOf = Callable[..., VideoPlan]
"""A function that plans a request for a model, whose `transformer` is not in its files if one is given."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """One set-up, with its plan, and whether it needs a copy of the weights that has yet to be written."""

    request: GenerationRequest
    info: ModelInfo
    copy: bool
    plan: VideoPlan

    @property
    def seconds(self) -> float:
        """Return the time of a step's copies. Weights that are rounded on the way take longer than any."""
        plan = self.plan
        return math.inf if plan.step_bytes and self.request.weight_dtype != _STORED else plan.copy_seconds

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
        """Return the settings that make up the set-up; None stands for the default."""
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
        then, name = duration(self.copy.seconds), self.copy.info.name
        return (
            f"{self.set_up.reason} With a file in int8, that would take about {then}; `python -m app models "
            f"convert {name} --weight-dtype int8` writes one."
        )

    @property
    def words(self) -> str:
        """Return sentences on the set-up, what it streams, and the reasons."""
        found = self.set_up
        kinds = {_STORED: "weights as they are stored", _SMALL: "weights rounded to int8"}
        said = (
            f"Recommended for this card: {found.info.title} at {found.side} pixels, "
            f"{kinds[found.request.weight_dtype]}, {gb_text(found.plan.job.preserved_bytes)} GB preserved.",
            found.plan.streaming,
            self.reasons,
        )
        return " ".join(filter(None, said))


def recommend(request: GenerationRequest, info: ModelInfo, plan: PlanOf) -> Recommendation:
    """Return the set-up that suits a card best, by the rule above.

    Raises:
        DoesNotFit: If the model does not fit at any resolution.
        LongtakeError: If a local model's files cannot be read, or only the driver knows the card's size.
    """
    request = replace(request, resolution=None, preserved_gb=None)
    try:
        return _first_hidden(_set_ups(request, info, plan))
    except DoesNotFit as error:
        if not error.side:
            raise
        return _first_hidden(_set_ups(replace(request, resolution=error.side), info, plan))


def _first_hidden(set_ups: Iterator[SetUp]) -> Recommendation:
    """Return the first set-up that hides its copies, or else the fastest, and the fastest with a copy."""
    found = list[SetUp]()
    for one in set_ups:
        if one.is_hidden and not one.copy:
            return Recommendation(one, None)
        found.append(one)
    best = min((one for one in found if not one.copy), key=lambda one: one.seconds)
    copies = (one for one in found if one.copy and one.seconds < best.seconds)
    return Recommendation(best, min(copies, key=lambda one: one.seconds, default=None))


def _weights_of(info: ModelInfo) -> Iterator[tuple[ModelInfo, str, Network | None]]:
    """Yield the ways to have a model's weights, the most precise first, with the type to round them to.

    The last one, a copy in int8 that can be written, has its transformer. fp8 is as large and less precise.
    """
    yield info, _STORED, None
    bases = ADDED_MODELS.bases()
    added = [ADDED_MODELS.find(name) for name, base in bases.items() if base == info.name]
    copies = [one.name for one in added if one is not None and one.copy]
    yield from ((find_model(name), _STORED, None) for name in copies)
    try:
        small, own = (transformer_in(info, name) for name in (_SMALL, _STORED))
    except InputError:  # weights that cannot be cast
        return
    if small.file_bytes < own.file_bytes:
        yield info, _SMALL, None
        if not copies:
            yield info, _STORED, small


def _set_ups(request: GenerationRequest, info: ModelInfo, plan: PlanOf) -> Iterator[SetUp]:
    """Yield the set-ups that fit, in the order of the rule; the model's own files have to fit."""
    for place, (model, weight_dtype, copy) in enumerate(_weights_of(info)):
        name = request.model if model is info else model.name
        own = replace(request, model=name, weight_dtype=weight_dtype)
        try:
            usual = plan(own, model, transformer=copy)
        except DoesNotFit:
            if not place:
                raise
            continue
        is_rounded, fewest = weight_dtype != _STORED, usual.fewest_copies
        if fewest is None or not is_rounded:
            yield SetUp(own, model, copy is not None, usual)
        if fewest is not None and (is_rounded or usual.saved_bytes):
            own = with_fewest_copies(own, usual)
            yield SetUp(own, model, copy is not None, plan(own, model, transformer=copy))

"""The line beneath the memory plan about the set-up that suits the card, with a button that takes it over."""

from __future__ import annotations

import json
from html import escape

from app.ui.planner import Planner
from diffusers_helper.errors import LongtakeError
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.cards.recommended import SetUp
from diffusers_helper.planning.video import VideoPlan
from diffusers_helper.request import GenerationRequest


def recommended_line(
    planner: Planner, request: GenerationRequest, info: ModelInfo, plan: VideoPlan | None
) -> str:
    """Return the line as markup; empty without a card, or if nothing needs to be said.

    Args:
        planner: The planner of this machine.
        request: The form's request.
        info: Its model.
        plan: The plan of the request; None if it does not fit.
    """
    if planner.profile.machine.kind == "cpu":
        return ""
    try:
        found = planner.recommend(request, info)
    except LongtakeError:  # what is wrong is said above
        return ""
    if plan is not None and _has(request, info, plan, found.set_up):
        words = f"This is the recommended set-up for this card. {found.reasons}"
        return f'<p class="lt-hint">{escape(words)}</p>' if plan.step_bytes else ""
    settings = found.set_up.settings
    if found.set_up.weights.info is info:
        del settings["model"]  # which the form may know by another name
    return (
        f'<div class="lt-preserved"><p class="lt-hint">{escape(found.words)}</p><p class="lt-answers">'
        f'<button type="button" data-recommended="{escape(json.dumps(settings))}">'
        "Use the recommended set-up</button></p></div>"
    )


def _has(request: GenerationRequest, info: ModelInfo, plan: VideoPlan, best: SetUp) -> bool:
    """Return whether a request has the set-up already."""
    mine = (info.name, plan.weight_dtype, request.preserved_gb, request.resolution or info.side)
    other = best.weights
    return mine == (other.info.name, other.weight_dtype, best.request.preserved_gb, best.side)

"""The line beneath the memory plan about preserved memory: its cost, and buttons for another value."""

from __future__ import annotations

from html import escape

from app.ui.planner import MEMORY_SETTINGS, Planner
from diffusers_helper.planning.video import VideoPlan
from diffusers_helper.units import gb_text

_PRESERVED = MEMORY_SETTINGS[1]


def preserved_line(plan: VideoPlan, planner: Planner) -> str:
    """Return the line with its buttons as markup; empty where no other value would change anything."""
    choice = plan.preserved
    if choice is None:
        return ""
    budget, fewest = choice.plan.budget, choice.fewest_copies.budget.preserved_bytes
    automatic = planner.defaults[_PRESERVED]
    buttons: list[str] = []
    if choice.saved_bytes > 0:
        buttons.append(_button(gb_text(fewest), "Fewest copies"))
    if not budget.is_default and gb_text(budget.preserved_bytes) != f"{automatic:g}":
        buttons.append(_button(f"{automatic:g}", "Automatic"))
    if not buttons:
        return ""
    words = f'<p class="lt-hint">{escape(choice.words)}</p>' if choice.words else ""
    return f'<div class="lt-preserved">{words}<p class="lt-answers">{"".join(buttons)}</p></div>'


def _button(value: str, name: str) -> str:
    return (
        f'<button type="button" data-preserved="{value}" aria-label="{name}: preserve {value} GB">'
        f"{name}: {value} GB</button>"
    )

"""The memory plan as text and as a bar, with lines on preserved memory and the recommended set-up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from app.ui.errors import page_error
from app.ui.form.markup import hint, refusal_line
from app.ui.planner import MEMORY_SETTINGS, Planner
from diffusers_helper.errors import LongtakeError
from diffusers_helper.events import STAGES
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import Budget, DoesNotFit, StagePlan
from diffusers_helper.planning.set_ups import SetUp, recommend
from diffusers_helper.planning.times import forecast
from diffusers_helper.planning.video import VideoPlan
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import gb_text

# A bar over the whole device cannot show anything smaller than this share of it.
_SMALL_SHARE, _AROUND = 0.1, 1.25
_PRESERVED = MEMORY_SETTINGS[1]
_RECOMMENDED = "Use the recommended set-up"
_MAIN_MEMORY = (
    "This machine has no GPU. The plan is for main memory, and the cap limits how much of it the networks "
    "and their tensors use."
)


def report(
    planner: Planner, request: GenerationRequest, info: ModelInfo, shape: tuple[int, int] | None = None
) -> tuple[str, str]:
    """Return the form's account of a plan: the text in the fold's head, and the markup within it."""
    if not planner.knows_the_size and request.vram_cap_gb is None:
        text = "Only the driver knows how much memory this card has, so the plan is made when a video starts."
        return "planned at the start", f'<p class="lt-plan-say">{text}</p>'
    try:
        found = planner.plan(request, info, shape)
    except DoesNotFit as error:
        head = _head(planner, error.budget, error.least.stages, " ".join(page_error(error)), fits=False)
        return "does not fit", head + recommended_line(planner, request, info, None)
    except LongtakeError as error:
        return "", refusal_line(error, "No plan: ")
    times = forecast(found, planner.profile, info)
    said = " ".join(filter(None, (sentence(found), times and times.words)))
    head = _head(planner, found.job.budget, found.job.stages, said, fits=True)
    lines = recommended_line(planner, request, info, found) + preserved_line(found, planner)
    return f"fits, peak {gb_text(found.job.peak_bytes)} GB", head + lines + _table(found)


def sentence(plan: VideoPlan) -> str:
    """Return a text about the memory and the streaming of a plan."""
    job = plan.job
    said = [f"Fits: peak {gb_text(job.peak_bytes)} of {gb_text(job.budget.cap_bytes)} GB."]
    sample = job.stage("sample")
    if sample.streamed_blocks:
        blocks = len(sample.streamed_blocks) + len(sample.resident_blocks)
        time = f": {plan.time_words}" if plan.time_words else ""
        said.append(
            f"{len(sample.streamed_blocks)} of {blocks} blocks of the transformer are streamed, "
            f"{gb_text(plan.step_bytes)} GB per step{time}."
        )
    elif not job.keep_all_resident:
        said.append("Nothing is streamed in a step; one network at a time is on the device.")
    return " ".join([*said, *plan.notes])


def _head(planner: Planner, budget: Budget, stages: Sequence[StagePlan], said: str, *, fits: bool) -> str:
    heaviest = max(stages, key=lambda stage: stage.peak_bytes)
    role, answer = ("", "yes") if fits else (" lt-refusal", "no")
    where = hint(_MAIN_MEMORY) if planner.profile.machine.kind == "cpu" else ""
    words = f'<p class="lt-plan-say{role}" data-fits="{answer}">{escape(said)}</p>'
    return f"{_bar(budget, heaviest)}{words}{where}"


def _table(plan: VideoPlan) -> str:
    rows = "".join(_row(stage, plan.job.of(stage.stage) is plan.job) for stage in plan.job.all_stages)
    return (
        '<details class="lt-plan-stages"><summary>Stage by stage</summary><table><caption>In GB: weights '
        "that stay, weights streamed per pass, predicted peak</caption><thead><tr>"
        '<th scope="col">Stage</th><th scope="col">Stays</th><th scope="col">Streamed</th>'
        f'<th scope="col">Peak</th></tr></thead><tbody>{rows}</tbody></table></details>'
    )


def _row(stage: StagePlan, is_here: bool) -> str:
    streamed = gb_text(stage.streamed_bytes) if stage.streamed_bytes else "–"
    cells = (gb_text(stage.held_bytes), streamed, gb_text(stage.peak_bytes))
    figures = "".join(f"<td>{cell}</td>" for cell in cells)
    card = "" if is_here else ", on the second card"
    return f'<tr><th scope="row">{STAGES[stage.stage].network}{card}</th>{figures}</tr>'


def _bar(budget: Budget, stage: StagePlan) -> str:
    """Return a bar that spans the device's memory, or little more than cap and use if these are small."""
    parts = [
        ("stay", "weights that stay", stage.held_bytes),
        ("ring", "ring for streaming", stage.ring_bytes),
        ("work", "working set", stage.working_bytes),
        ("more", "reserve", stage.reserve_bytes),
    ]
    used = [part for part in parts if part[2]]
    cap, total = budget.cap_bytes, sum(size for _, _, size in used)
    most = max(cap, total)
    whole = max(budget.total_bytes, most)
    if most < _SMALL_SHARE * whole:
        whole = most * _AROUND

    def share(size: float) -> str:
        return f"{100 * size / whole:.2f}%"

    blocks = "".join(f'<i class="lt-mem-{kind}" style="width:{share(size)}"></i>' for kind, _, size in used)
    over = ""
    if total > cap:
        over = f'<div class="lt-mem-over" style="left:{share(cap)};width:{share(total - cap)}"></div>'
    free = [("free", "free", cap - total)] if cap > total else []
    reported = [(kind, name, gb_text(size)) for kind, name, size in [*used, *free]]
    legend = "".join(
        f'<li><i class="lt-mem-{kind}"></i>{name} <b>{size}</b></li>' for kind, name, size in reported
    )
    name = STAGES[stage.stage].network
    words = ", ".join(f"{name} {size} GB" for _, name, size in reported)
    words = f"{name}, the heaviest stage: {words}; cap {gb_text(cap)} GB"
    side = "lt-left" if cap > whole / 2 else "lt-right"
    return (
        f'<div class="lt-mem" role="img" aria-label="{words}">'
        f'<div class="lt-mem-bar">{blocks}</div>{over}'
        f'<div class="lt-mem-cap {side}" style="left:{share(cap)}"><span>cap {gb_text(cap)}</span></div>'
        "</div>"
        f'<ul class="lt-mem-key" aria-hidden="true"><li><b>{name}, in GB</b></li>{legend}</ul>'
    )


def preserved_line(plan: VideoPlan, planner: Planner) -> str:
    """Return the line with its buttons as markup; empty where no other value would change anything."""
    if plan.fewest_copies is None:
        return ""
    budget, automatic = plan.job.budget, f"{planner.defaults[_PRESERVED]:g}"
    values: dict[str, str] = {}
    if plan.saved_bytes:
        values["Fewest copies"] = gb_text(plan.fewest_copies.budget.preserved_bytes)
    if not budget.is_default and gb_text(budget.preserved_bytes) != automatic:
        values["Automatic"] = automatic
    buttons = "".join(
        f'<button type="button" data-preserved="{value}" aria-label="{name}: preserve {value} GB">'
        f"{name}: {value} GB</button>"
        for name, value in values.items()
    )
    return _offer(plan.preserved_words, buttons) if buttons else ""


def _offer(words: str, buttons: str) -> str:
    return f'<div class="lt-preserved">{hint(words)}<p class="lt-answers">{buttons}</p></div>'


def recommended_line(
    planner: Planner, request: GenerationRequest, info: ModelInfo, plan: VideoPlan | None
) -> str:
    """Return the line as markup, given the request's plan, or None if it does not fit; it may be empty."""
    if planner.profile.machine.kind == "cpu":
        return ""
    try:
        found = recommend(request, info, planner.plan)
    except LongtakeError:  # what is wrong is said above
        return ""
    if plan is not None and _has(request, info, plan, found.set_up):
        words = f"This is the recommended set-up for this card. {found.reasons}"
        return hint(words) if plan.step_bytes else ""
    settings = found.set_up.settings
    if found.set_up.info is info:
        del settings["model"]  # which the form may know by another name
    given = escape(json.dumps(settings))
    return _offer(found.words, f'<button type="button" data-recommended="{given}">{_RECOMMENDED}</button>')


def _has(request: GenerationRequest, info: ModelInfo, plan: VideoPlan, best: SetUp) -> bool:
    mine = (info.name, plan.weight_dtype, request.preserved_gb, request.resolution or info.side)
    other = best.request
    return mine == (best.info.name, other.weight_dtype, other.preserved_gb, best.side)

"""The memory plan as text and as a bar, with lines on preserved memory and the recommended set-up."""

import json
from collections.abc import Sequence
from html import escape

from app.ui.errors import page_error
from app.ui.form.markup import hint, refusal_line
from app.ui.planner import MEMORY_SETTINGS, Planner
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import STAGES
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.planning.budget import Budget, DoesNotFit, StagePlan
from diffusers_helper.planning.set_ups import recommend
from diffusers_helper.planning.times import forecast
from diffusers_helper.planning.video import VideoPlan
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import gb_text

# A bar over the whole device cannot show anything smaller than this share of it.
_SMALL_SHARE, _BAR_MARGIN = 0.1, 1.25
_PRESERVED = MEMORY_SETTINGS[1]
_RECOMMENDED = "Use the recommended set-up"
_MAIN_MEMORY = (
    "This machine has no GPU. The plan is for main memory, and the cap limits how much of it the networks "
    "and their tensors use."
)


def report(
    planner: Planner,
    request: GenerationRequest | InputError,
    info: ModelInfo,
    shape: tuple[int, int] | None = None,
) -> tuple[str, str]:
    """Describe a plan, or what is wrong with it: the text in the fold's head, and the markup within it."""
    if isinstance(request, InputError):
        is_ours = request.setting in SETTINGS and SETTINGS[request.setting].section == "Memory"
        is_shown = is_ours or request.setting == "lora"
        return "", refusal_line(request, is_alert=True) if is_shown else ""
    if not planner.has_cap and request.vram_cap_gb is None:
        text = "Only the driver knows how much memory this card has, so the plan is made when a video starts."
        return "planned at the start", f'<p class="lt-plan-say">{text}</p>'
    try:
        plan = planner.plan(request, info, shape)
    except DoesNotFit as error:
        text = " ".join(page_error(error))
        head = _head(planner, error.budget, error.smallest_plan.stages, text, fits=False)
        return "does not fit", head + recommended_line(planner, request, info, None)
    except LongtakeError as error:
        return "", refusal_line(error, "No plan: ")
    times = forecast(plan, planner.profile, info)
    text = " ".join(filter(None, (sentence(plan), times and times.text)))
    head = _head(planner, plan.job.budget, plan.job.stages, text, fits=True)
    lines = recommended_line(planner, request, info, plan) + preserved_line(plan, planner)
    return f"fits, peak {gb_text(plan.job.peak_bytes)} GB", head + lines + _table(plan)


def sentence(plan: VideoPlan) -> str:
    job = plan.job
    sentences = [f"Fits: peak {gb_text(job.peak_bytes)} of {gb_text(job.budget.cap_bytes)} GB."]
    sample = job.stage("sample")
    if sample.streamed_blocks:
        blocks = len(sample.streamed_blocks) + len(sample.resident_blocks)
        time = f": {plan.copy_time_text}" if plan.copy_time_text else ""
        sentences.append(
            f"{len(sample.streamed_blocks)} of {blocks} blocks of the transformer are streamed, "
            f"{gb_text(plan.step_bytes)} GB per step{time}."
        )
    elif not job.keep_all_resident:
        sentences.append("Nothing is streamed in a step; one network at a time is on the device.")
    return " ".join([*sentences, *plan.notes])


def _head(planner: Planner, budget: Budget, stages: Sequence[StagePlan], text: str, *, fits: bool) -> str:
    heaviest = max(stages, key=lambda stage: stage.peak_bytes)
    role, answer = ("", "yes") if fits else (" lt-refusal", "no")
    note = hint(_MAIN_MEMORY) if planner.profile.machine.kind == "cpu" else ""
    paragraph = f'<p class="lt-plan-say{role}" data-fits="{answer}">{escape(text)}</p>'
    return f"{_bar(budget, heaviest)}{paragraph}{note}"


def _table(plan: VideoPlan) -> str:
    rows = ""
    for stage in plan.job.all_stages:
        streamed = gb_text(stage.streamed_bytes) if stage.streamed_bytes else "–"
        cells = (gb_text(stage.held_bytes), streamed, gb_text(stage.peak_bytes))
        figures = "".join(f"<td>{cell}</td>" for cell in cells)
        card = "" if plan.job.of(stage.stage) is plan.job else ", on the second card"
        rows += f'<tr><th scope="row">{STAGES[stage.stage].network}{card}</th>{figures}</tr>'
    return (
        '<details class="lt-plan-stages"><summary>Stage by stage</summary><table><caption>In GB: weights '
        "that stay, weights streamed per pass, predicted peak</caption><thead><tr>"
        '<th scope="col">Stage</th><th scope="col">Stays</th><th scope="col">Streamed</th>'
        f'<th scope="col">Peak</th></tr></thead><tbody>{rows}</tbody></table></details>'
    )


def _bar(budget: Budget, stage: StagePlan) -> str:
    """Draw a bar that spans the device's memory, or little more than cap and use if these are small."""
    segments = [
        ("stay", "weights that stay", stage.held_bytes),
        ("ring", "ring for streaming", stage.ring_bytes),
        ("work", "working set", stage.working_bytes),
        ("more", "reserve", stage.reserve_bytes),
    ]
    drawn = [segment for segment in segments if segment[2]]
    cap = budget.cap_bytes
    total = sum(size for _, _, size in drawn)
    top_bytes = max(cap, total)
    span_bytes = max(budget.total_bytes, top_bytes)
    if top_bytes < _SMALL_SHARE * span_bytes:
        span_bytes = top_bytes * _BAR_MARGIN

    def share(size: float) -> str:
        return f"{100 * size / span_bytes:.2f}%"

    blocks = "".join(f'<i class="lt-mem-{kind}" style="width:{share(size)}"></i>' for kind, _, size in drawn)
    excess = ""
    if total > cap:
        excess = f'<div class="lt-mem-over" style="left:{share(cap)};width:{share(total - cap)}"></div>'
    free = [("free", "free", cap - total)] if cap > total else []
    entries = [(kind, name, gb_text(size)) for kind, name, size in [*drawn, *free]]
    legend = "".join(
        f'<li><i class="lt-mem-{kind}"></i>{name} <b>{size}</b></li>' for kind, name, size in entries
    )
    name = STAGES[stage.stage].network
    label = ", ".join(f"{name}: {size} GB" for _, name, size in entries)
    label = f"{name}, the heaviest stage: {label}; cap {gb_text(cap)} GB"
    side = "lt-left" if cap > span_bytes / 2 else "lt-right"
    return (
        f'<div class="lt-mem" role="img" aria-label="{label}">'
        f'<div class="lt-mem-bar">{blocks}</div>{excess}'
        f'<div class="lt-mem-cap {side}" style="left:{share(cap)}"><span>cap {gb_text(cap)}</span></div>'
        "</div>"
        f'<ul class="lt-mem-key" aria-hidden="true"><li><b>{name}, in GB</b></li>{legend}</ul>'
    )


def preserved_line(plan: VideoPlan, planner: Planner) -> str:
    """Offer other values of preserved memory; "" where none would change anything."""
    if plan.fewest_copies is None:
        return ""
    budget = plan.job.budget
    automatic = f"{planner.defaults[_PRESERVED]:g}"
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
    return _line_with_buttons(plan.preserved_text, buttons) if buttons else ""


def _line_with_buttons(text: str, buttons: str) -> str:
    return f'<div class="lt-preserved">{hint(text)}<p class="lt-answers">{buttons}</p></div>'


def recommended_line(
    planner: Planner, request: GenerationRequest, info: ModelInfo, plan: VideoPlan | None
) -> str:
    """Offer the recommended set-up, given the plan of what fits; "" if there is nothing to say."""
    if planner.profile.machine.kind == "cpu":
        return ""
    try:
        recommendation = recommend(request, info, planner.plan)
    except LongtakeError:  # what is wrong is said above
        return ""
    best = recommendation.set_up
    wanted = best.info.name, best.request.weight_dtype, best.request.preserved_gb, best.side
    planned = info.name, plan and plan.weight_dtype, request.preserved_gb, request.resolution or info.side
    if plan is not None and planned == wanted:
        text = f"This is the recommended set-up for this card. {recommendation.reasons}"
        return hint(text) if plan.step_bytes else ""
    settings = best.settings
    if best.info is info:
        del settings["model"]  # which the form may know by another name
    button = (
        f'<button type="button" data-recommended="{escape(json.dumps(settings))}">{_RECOMMENDED}</button>'
    )
    return _line_with_buttons(recommendation.words, button)

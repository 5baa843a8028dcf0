"""The words of each section: in the form, with the prompt with times that says so, and of a job."""

from __future__ import annotations

from math import isclose
from typing import Any, cast

from app.jobs.job import Job
from app.ui.form.markup import hint, refusal_line
from diffusers_helper.conditions.timeline import Timeline, Words, blended, with_words, words_of
from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.families.packing import SectionPlan
from diffusers_helper.models.registry import family_of
from diffusers_helper.placed import Placed, placed_of
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import PLACED, SETTINGS, GenerationRequest
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS
from diffusers_helper.strangers.limited_json import json_or_none

SECTION_WORDS = "section_words"
"""The hidden field with the words of each section, as JSON, until the prompt says them."""


def usable(settings: dict[str, Any], name: str) -> Any:
    """Return the value of a setting, or the default for anything else that its field may hold."""
    try:
        return SETTINGS[name].check(settings.get(name))
    except InputError:
        return SETTINGS[name].default


def plan_of(settings: dict[str, Any], family: Family) -> SectionPlan | None:
    """Return the sections of the form's video; None for values that the start refuses."""
    length = {
        name: settings.get(name, SETTINGS[name].default) for name in ("seconds", "mode", "loop", "one_frame")
    }
    prompt = str(settings.get("prompt") or "")
    image = "any" if settings.get("image") or not prompt.strip() else ""
    try:
        return family.sections(GenerationRequest.from_dict({"image": image, "prompt": "any", **length}))
    except ValueError:  # also an order that only another model has, just after a change of the model
        return None


def directed(settings: dict[str, Any], family: Family) -> str:
    """Return the form's prompt, changed to say what the strip's fields say if they were edited since."""
    prompt, plan = str(settings.get("prompt") or ""), plan_of(settings, family)
    words = _words(settings.get(SECTION_WORDS))
    if plan is None or len(words) != len(plan):  # the strip is about an earlier length
        return prompt
    try:
        return with_words(prompt, words, family.section_seconds)
    except InputError:
        return prompt


def _words(text: object) -> list[str]:
    found = json_or_none(text)
    texts = cast(list[object], found) if isinstance(found, list) else []
    kept = [one for one in texts if isinstance(one, str) and len(one) <= MAX_PROMPT_CHARACTERS]
    return kept if len(kept) == len(texts) else []


def strip(settings: dict[str, Any], family: Family) -> tuple[dict[str, Any], str]:
    """Return the facts of the strip, and markup about the times in effect, to show beneath the prompt."""
    prompt, plan = directed(settings, family), plan_of(settings, family)
    facts: dict[str, Any] = {
        "of": [settings.get(name) for name in ("prompt", SECTION_WORDS, PLACED)], "prompt": prompt,
        "sections": [], "later": [],
    }  # fmt: skip
    try:
        timeline = Timeline.of(prompt)
    except InputError as error:
        return facts, refusal_line(error)
    if plan is None:
        return facts, ""
    count, each = len(plan), family.section_seconds
    texts, placed = timeline.words(count, each), _pictures(settings, each)
    over = usable(settings, "prompt_blend")
    own = map(_own, timeline.seeds(count, each), timeline.weights(count, each))
    facts["later"] = [str(one) for place, one in placed.items() if place >= count]
    facts["sections"] = [
        _section(texts, place, blended(texts, place, over), phrase, each)
        | {"picture": (one := placed.get(place)) and {"path": one.file, "crop": one.crop}}
        for place, phrase in enumerate(own)
    ]
    return facts, hint(" ".join([*_notes(timeline, texts, each), *_moved(placed, each)]))


def _pictures(settings: dict[str, Any], each: float) -> dict[int, Placed]:
    try:
        placed = placed_of(str(settings.get(PLACED) or ""))
    except InputError:  # the start refuses it
        return {}
    return {one.place(each): one for one in placed}


def _moved(placed: dict[int, Placed], each: float) -> list[str]:
    borders = [(one.time, place * each) for place, one in placed.items()]
    return [
        f"The picture at {time:g} s is moved to {border:g} s."
        for time, border in borders if not isclose(time, border, abs_tol=1e-6)
    ]  # fmt: skip


def _section(texts: tuple[str, ...], place: int, words: Words, own: str, seconds: float) -> dict[str, Any]:
    """Return a section's facts.

    `begins` says whether its words differ from those before, and `tone` alternates from text to text.
    """
    begins = [at for at in range(len(texts)) if at == 0 or texts[at] != texts[at - 1]]
    time = f"{place * seconds:.1f} – {(place + 1) * seconds:.1f} s"
    change = ", ".join(filter(None, (change_text(words), own)))
    return {
        "time": time,
        "place": place,
        "begin": f"{place * seconds:.9g}",
        "words": texts[place],
        "begins": place in begins,
        "tone": sum(at <= place for at in begins) % 2,
        "share": round(100 * words[-1][1]),
        "change": change,
        "label": f"Words for section {place + 1}, {time}" + (f", {change}" if change else ""),
    }


def _own(seed: int | None, weights: dict[str, float]) -> str:
    loras = [f"{name} {weight:g}" for name, weight in weights.items()]
    return ", ".join([*([] if seed is None else [f"seed {seed}"]), *loras])


def change_text(words: Words) -> str:
    """Return a phrase for the share of a section's own words; "" if they are not mixed with those before."""
    return f"{100 * words[-1][1]:.0f} % new words" if len(words) > 1 else ""


def section_words(job: Job) -> tuple[dict[int, str], int]:
    """Return the words of sections by number, none if all have the same, and how many a branch kept."""
    try:
        request, family = job.request, family_of(job.request.model)
        lineage = Lineage.read(JobFolder(job.folder).lineage)
        plan = family.sections(request)
        owns = ((one.number, lineage.request_for(one.number, request)) for one in plan)
        found = [words_of(number, own, family) for number, own in owns]
    except (InputError, OSError):  # the model, or a file of the job, is gone or damaged
        return {}, 0
    if len({words[-1][0] for words in found}) == 1:
        return {}, lineage.kept
    texts = [", ".join(filter(None, (words[-1][0] or "no words", change_text(words)))) for words in found]
    return dict(enumerate(texts, 1)), lineage.kept


def _notes(timeline: Timeline, texts: tuple[str, ...], seconds: float) -> list[str]:
    cues, notes = (*timeline.cues, *timeline.others), list[str]()
    changes = [f"{at * seconds:g}" for at in range(1, len(texts)) if texts[at] != texts[at - 1]]
    listed = " and ".join(filter(None, (", ".join(changes[:-1]), *changes[-1:])))
    if timeline.cues:
        notes.append(f"The words change at {listed} s." if changes else "The same words hold throughout.")
    moved = dict[float, float]()
    for cue in cues:
        if cue.sections(seconds, otherwise=cue.begin).start < len(texts):
            moved |= cue.moved(len(texts), seconds)
        else:
            notes.append(f"{cue.begin:g} s is after the end of the video.")
    sections = "where sections meet"
    return [*notes, *(f"{time:g} s is moved to {border:g} s, {sections}." for time, border in moved.items())]

"""The prompt of each section: in the form's strip, which follows from the prompt with times, and of a job."""

from typing import Any, cast

from app.jobs.job import Job
from app.ui.form.markup import hint, refusal_line
from diffusers_helper.conditions.timeline import Shares, Timeline, blend_prompts, prompts_of, with_prompts
from diffusers_helper.conditions.times import notes_on_times
from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.families.packing import SectionPlan
from diffusers_helper.models.registry import model_family
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import SETTINGS, TIMED_PICTURES, GenerationRequest
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS, SettingInfo
from diffusers_helper.timed_pictures import timed_pictures_of
from diffusers_helper.untrusted.limited_json import json_or_none

SECTION_WORDS = "section_words"
"""The hidden field with the words of each section, as JSON, until the prompt says them."""


def usable_value(settings: dict[str, Any], setting: str | SettingInfo) -> Any:
    """Check the value of a setting; the default stands for anything that cannot be used."""
    info = SETTINGS[setting] if isinstance(setting, str) else setting
    try:
        return info.check(settings.get(info.name))
    except InputError:
        return info.default


def plan_of(settings: dict[str, Any], family: Family) -> SectionPlan | None:
    names = ("seconds", "mode", "loop", "one_frame", "clip_frames", "carried_frames")
    length = {name: settings.get(name, SETTINGS[name].default) for name in names}
    prompt = str(settings.get("prompt") or "")
    image = "any" if settings.get("image") or not prompt.strip() else ""
    try:
        return family.sections(GenerationRequest.from_dict({"image": image, "prompt": "any", **length}))
    except ValueError:  # also an order that only another model has, just after a change of the model
        return None


def prompt_of_strip(settings: dict[str, Any], family: Family) -> str:
    """Change the form's prompt to say what the strip's fields say, if they were edited since."""
    prompt = str(settings.get("prompt") or "")
    plan = plan_of(settings, family)
    texts = _prompts_in(settings.get(SECTION_WORDS))
    if plan is None or len(texts) != len(plan):  # the strip is about an earlier length
        return prompt
    try:
        return with_prompts(prompt, texts, plan.section_seconds)
    except InputError:
        return prompt


def _prompts_in(text: object) -> list[str]:
    data = json_or_none(text)
    texts = cast(list[object], data) if isinstance(data, list) else []
    valid = [item for item in texts if isinstance(item, str) and len(item) <= MAX_PROMPT_CHARACTERS]
    return valid if len(valid) == len(texts) else []


def strip(settings: dict[str, Any], family: Family) -> tuple[dict[str, Any], str]:
    """Describe the strip: its data, and markup about the times in effect, to show beneath the prompt."""
    prompt = prompt_of_strip(settings, family)
    plan = plan_of(settings, family)
    facts: dict[str, Any] = {
        "of": [settings.get(name) for name in ("prompt", SECTION_WORDS, TIMED_PICTURES)], "prompt": prompt,
        "sections": [], "later": [],
    }  # fmt: skip
    try:
        timeline = Timeline.of(prompt)
    except InputError as error:
        return facts, refusal_line(error)
    if plan is None:
        return facts, ""
    count, seconds = len(plan), plan.section_seconds
    texts = timeline.prompts_by_section(count, seconds)
    timed_pictures = timed_pictures_of(usable_value(settings, TIMED_PICTURES))
    pictures = {picture.section_index(seconds): picture for picture in timed_pictures}
    blend = usable_value(settings, "prompt_blend")
    seeds = [[] if seed is None else [f"seed {seed}"] for seed in timeline.seeds_by_section(count, seconds)]
    weights = timeline.weights_by_section(count, seconds)
    loras = [[f"{name} {weight:g}" for name, weight in by_name.items()] for by_name in weights]
    changes = [", ".join([*seed, *lora]) for seed, lora in zip(seeds, loras, strict=True)]
    facts["later"] = [str(picture) for index, picture in pictures.items() if index >= count]
    facts["sections"] = [
        _section(texts, index, blend_prompts(texts, index, blend), change, seconds)
        | {"picture": (picture := pictures.get(index)) and {"path": picture.file, "crop": picture.crop}}
        for index, change in enumerate(changes)
    ]
    notes = notes_on_times(prompt, timed_pictures, plan)
    starts = [f"{index * seconds:g}" for index in range(1, count) if texts[index] != texts[index - 1]]
    if timeline.cues:
        times = " and ".join(filter(None, (", ".join(starts[:-1]), *starts[-1:])))
        notes = (f"The words change at {times} s." if starts else "The same words hold throughout.", *notes)
    return facts, hint(" ".join(notes))


def _section(
    texts: tuple[str, ...], index: int, shares: Shares, change: str, seconds: float
) -> dict[str, Any]:
    """Describe a section, which `begins` if its words are new; `tone` alternates with them."""
    starts = [start for start in range(len(texts)) if start == 0 or texts[start] != texts[start - 1]]
    time = f"{index * seconds:.1f} – {(index + 1) * seconds:.1f} s"
    change = ", ".join(filter(None, (change_text(shares), change)))
    return {
        "time": time,
        "place": index,
        "begin": f"{index * seconds:.9g}",
        "words": texts[index],
        "begins": index in starts,
        "tone": sum(start <= index for start in starts) % 2,
        "share": round(100 * shares[-1][1]),
        "change": change,
        "label": f"Words for section {index + 1}, {time}" + (f", {change}" if change else ""),
    }


def change_text(shares: Shares) -> str:
    return f"{100 * shares[-1][1]:.0f} % new words" if len(shares) > 1 else ""


def section_prompts(job: Job) -> tuple[dict[int, str], int]:
    """Find the prompts of a job's sections, none if all have the same, and how many a branch has kept."""
    try:
        request, family = job.request, model_family(job.request.model)
        if request.finish:
            return {}, 0
        lineage = Lineage.read(JobFolder(job.folder).lineage)
        plan = family.sections(request)
        numbers = [section.number for section in plan]
        blends = [prompts_of(number, lineage.request_for(number, request), family) for number in numbers]
    except (InputError, OSError):  # the model, or a file of the job, is gone or damaged
        return {}, 0
    if len({shares[-1][0] for shares in blends}) == 1:
        return {}, lineage.kept
    texts = [", ".join(filter(None, (shares[-1][0] or "no words", change_text(shares)))) for shares in blends]
    return dict(enumerate(texts, 1)), lineage.kept

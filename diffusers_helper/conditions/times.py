"""What a person should know of the times in a prompt and of pictures; none of it is an error."""

import math
import re
from collections.abc import Iterator, Sequence

from diffusers_helper.conditions.timeline import CUE, Timeline
from diffusers_helper.errors import short_repr
from diffusers_helper.families.family import Family
from diffusers_helper.families.packing import SectionPlan
from diffusers_helper.request import GenerationRequest
from diffusers_helper.timed_pictures import TimedPicture
from diffusers_helper.units import CLOCK, NUMBER, TIME, UNIT

# What begins like a cue, or has a time as the head of a part, perhaps without brackets
_LIKE_CUE = re.compile(
    rf"(?:\[\s*[+-]?(?:{CLOCK}|{NUMBER}(?:\s*[-–—]\s*{NUMBER})?(?:{UNIT}\b|\s*[:：](?!\d)))"
    rf"|(?<![\w.,:]){TIME}\s*[:：])[^\]\n]{{0,30}}\]?",
    re.IGNORECASE,
)


def time_notes(request: GenerationRequest, family: Family) -> list[str]:
    return notes_on_times(request.prompt, request.timed_pictures, family.sections(request))


def notes_on_times(prompt: str, pictures: Sequence[TimedPicture], plan: SectionPlan) -> list[str]:
    timeline, count, seconds = Timeline.of(prompt), len(plan), plan.section_seconds
    notes = [
        f"{short_repr(match[0])} is no time that is understood and counts as words. Write it as [2.4s: ...]."
        for match in _LIKE_CUE.finditer(CUE.sub(" ", prompt))
    ]
    texts = timeline.prompts_by_section(count, seconds)
    rounded_times = dict[float, float]()
    for cue in (*timeline.cues, *timeline.overrides):
        if cue.section_indices(seconds, open_end=cue.start).start >= count:
            notes.append(f"{cue.start:g} s is after the end of the video.")
            continue
        rounded_times |= cue.rounded_times(count, seconds)
        if cue in timeline.cues and cue.text not in texts:
            notes.append(f"{cue} has no section, since another part begins at the same border.")
    moves = rounded_times.items()
    notes += [f"{time:g} s is moved to {border:g} s, where sections meet." for time, border in moves]
    return [*notes, *_notes_on_pictures(pictures if plan.total_frames > 1 else (), count, seconds)]


def _notes_on_pictures(
    pictures: Sequence[TimedPicture], num_sections: int, section_seconds: float
) -> Iterator[str]:
    indices = [picture.section_index(section_seconds) for picture in pictures]
    for number, (picture, index) in enumerate(zip(pictures, indices, strict=True), 1):
        border = index * section_seconds
        if index >= num_sections:
            yield f"The picture at {picture.time:g} s is after the end of the video, and has no effect."
        elif index in indices[number:]:
            yield f"The picture at {picture.time:g} s has no effect, since another one comes at {border:g} s."
        elif not math.isclose(picture.time, border, abs_tol=1e-6):
            yield f"The picture at {picture.time:g} s is moved to {border:g} s."

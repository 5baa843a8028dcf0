"""The words that condition each section: the prompt's text, seed and LoRA weights for its time.

A prompt says what happens when, as in `a red ball [0s: moves right] [2.4s-4.8s: moves up]`.

A text in brackets that begins with a time is a *cue*. It holds for whole sections, since each section has one
condition. Text outside of brackets holds for the sections without a cue. A cue whose text is a seed or the
weight of a LoRA, as in `[2.4s-3.6s: seed 7]` and `[2.4s: lora film:0.5]`, gives its sections that instead.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Self

from diffusers_helper.conditions.pictures import Shares, pictures_by_index
from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.lora_choice import Choice, choices_of
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import NUMBER, TIME, seconds_in

_SEED = re.compile(r"seed (\d{1,19})")
_LORA = re.compile(r"lora (\S.*:[+-]?(?:\d+\.?\d*|\.\d+))")
CUE = re.compile(
    rf"\[\s*(?P<start>{TIME}|{NUMBER}(?=\s*[-–—]\s*{TIME}))\s*(?:[-–—]\s*(?P<end>{TIME}|{NUMBER})\s*)?"
    r"[:：](?P<text>[^\[\]]*)\]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Cue:
    text: str
    start: float
    end: float | None

    def section_indices(self, section_seconds: float, *, open_end: float) -> range:
        """Find the sections that the cue covers: at least one, from border to nearest border."""
        start = math.floor(self.start / section_seconds + 0.5)
        if self.end is None:  # it ends where the next one starts, in the middle of a section, too
            stop = math.floor(open_end / section_seconds + 0.5)
        else:
            stop = math.ceil(self.end / section_seconds - 0.5)
        return range(start, max(start + 1, stop))

    def rounded_times(self, num_sections: int, section_seconds: float) -> tuple[tuple[float, float], ...]:
        """List its written times that are not on a border, each with the border that it is moved to."""
        indices = self.section_indices(section_seconds, open_end=self.start)
        borders = ((self.start, indices.start), (self.end, min(indices.stop, num_sections)))
        times = ((time, index * section_seconds) for time, index in borders if time is not None)
        return tuple(pair for pair in times if not math.isclose(*pair, abs_tol=1e-6))

    def __str__(self) -> str:
        times = f"{self.start:.9g}s" if self.end is None else f"{self.start:.9g}s-{self.end:.9g}s"
        return f"[{times}: {self.text}]" if self.text else f"[{times}:]"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A parsed prompt: the `base` outside of brackets, cues with texts, and those with a seed or a weight."""

    base: str
    cues: tuple[Cue, ...]
    overrides: tuple[Cue, ...] = ()

    @classmethod
    def of(cls, prompt: str) -> Self:
        matches = list(CUE.finditer(prompt))
        if not matches:
            return cls(prompt, ())
        cues: list[Cue] = []
        for match in matches:
            start = seconds_in(match["start"])
            end = seconds_in(match["end"]) if match["end"] else None
            if end is not None and end <= start:
                raise InputError(
                    setting="prompt", value=match[0], expected="an end after its begin",
                    remedy=f"Write [{start:.9g}s: ...] to let it last until the next one.",
                )  # fmt: skip
            cues.append(Cue(_collapse_spaces(match["text"]), start, end))
        cues.sort(key=lambda cue: cue.start)
        overrides = tuple(cue for cue in cues if _parse_seed(cue.text) is not None or _parse_lora(cue.text))
        base = _collapse_spaces(CUE.sub(" ", prompt))
        return cls(base, tuple(cue for cue in cues if cue not in overrides), overrides)

    @property
    def prompts(self) -> tuple[str, ...]:
        base = (self.base,) if self.base or not self.cues else ()
        return tuple(dict.fromkeys((*base, *(cue.text for cue in self.cues))))

    def prompts_by_section(self, num_sections: int, section_seconds: float) -> tuple[str, ...]:
        """List the text of each section, in the order of the video.

        A cue without an end lasts until the next one begins. Where cues overlap, the later one holds. Without
        a base, a gap continues the text before it, and the first gap takes the first cue's text.
        """
        base = self.base if self.base or not self.cues else None
        prompt = self.prompts[0]
        prompts: list[str] = []
        for text in _texts_by_section(self.cues, num_sections, section_seconds):
            text = base if text is None else text
            prompt = prompt if text is None else text
            prompts.append(prompt)
        return tuple(prompts)

    def seeds_by_section(self, num_sections: int, section_seconds: float) -> tuple[int | None, ...]:
        cues = [cue for cue in self.overrides if not _parse_lora(cue.text)]
        texts = _texts_by_section(cues, num_sections, section_seconds)
        return tuple(None if text is None else _parse_seed(text) for text in texts)

    @property
    def loras(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(lora.file for cue in self.overrides if (lora := _parse_lora(cue.text))))

    def weights_by_section(self, num_sections: int, section_seconds: float) -> tuple[dict[str, float], ...]:
        weights = tuple(dict[str, float]() for _ in range(num_sections))
        for name in self.loras:
            cues = [cue for cue in self.overrides if (lora := _parse_lora(cue.text)) and lora.file == name]
            texts = _texts_by_section(cues, num_sections, section_seconds)
            for section_weights, text in zip(weights, texts, strict=True):
                if text and (lora := _parse_lora(text)):
                    section_weights[name] = lora.weight
        return weights

    def with_prompts(self, prompts: Sequence[str], section_seconds: float) -> Self:
        """Change the texts of the sections. If they are the same, return this timeline.

        The base stays outside of brackets where sections still have it, and cues after the end of the video
        stay. Square brackets within a text become round ones.
        """
        current = [_collapse_spaces(text) for text in self.prompts_by_section(len(prompts), section_seconds)]
        if [_collapse_spaces(text) for text in prompts] == current:
            return self
        texts = [_escape_cue(text) for text in prompts]
        base = _escape_cue(self.base)
        old_base = _collapse_spaces(self.base)
        base_texts = [text for text, old in zip(texts, current, strict=True) if old == old_base]
        if len(set(texts)) == 1 or (base_texts and base not in base_texts):  # the base was edited
            base = (*base_texts, *texts)[0]
        starts = [index for index, text in enumerate(texts) if index == 0 or text != texts[index - 1]]
        cues: list[Cue] = []
        for start, end in pairwise([*starts, len(texts)]):
            if texts[start] != base or not base:
                is_open = not base or texts[end : end + 1] != [base]
                end_time = None if is_open else end * section_seconds
                cues.append(Cue(_round_brackets(texts[start]), start * section_seconds, end_time))
        later_cues = [
            cue
            for cue in self.cues
            if cue.section_indices(section_seconds, open_end=cue.start).start >= len(texts)
        ]
        return replace(self, base=base, cues=(*cues, *later_cues) if base or cues[1:] or later_cues else ())

    def __str__(self) -> str:
        return " ".join(filter(None, (self.base, *map(str, (*self.cues, *self.overrides)))))


def _texts_by_section(cues: Sequence[Cue], num_sections: int, section_seconds: float) -> list[str | None]:
    texts: list[str | None] = [None] * num_sections
    starts = [*(cue.start for cue in cues[1:]), num_sections * section_seconds]
    for cue, next_start in zip(cues, starts, strict=False):
        for index in cue.section_indices(section_seconds, open_end=next_start):
            if index < num_sections:
                texts[index] = cue.text
    return texts


def _parse_seed(text: str) -> int | None:
    match = _SEED.fullmatch(text)
    return SETTINGS["seed"].check(int(match[1])) if match else None


def _parse_lora(text: str) -> Choice | None:
    match = _LORA.fullmatch(text)
    return choices_of(match[1])[0] if match else None


def with_prompts(prompt: str, prompts: Sequence[str], section_seconds: float) -> str:
    timeline = Timeline.of(prompt)
    changed = timeline.with_prompts(prompts, section_seconds)
    return prompt if changed is timeline else str(changed)


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def _round_brackets(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


def _escape_cue(text: str) -> str:
    text = _collapse_spaces(text)
    return _round_brackets(text) if CUE.search(text) else text


def blend_prompts(prompts: Sequence[str], index: int, num_blend_sections: int) -> Shares:
    """In section i after a change, from 0, the new text has a share of (i + 1) / (blend sections + 1)."""
    start = index
    while start > 0 and prompts[start - 1] == prompts[index]:
        start -= 1
    sections_since = index - start
    if start == 0 or sections_since >= num_blend_sections:
        return ((prompts[index], 1.0),)
    share = (sections_since + 1) / (num_blend_sections + 1)
    return (prompts[start - 1], 1 - share), (prompts[index], share)


def prompts_of(number: int, request: GenerationRequest, family: Family) -> Shares:
    """Find texts by a section's own request. Those that a branch keeps stay at the parent's times."""
    prompts, _, _, video_indices = _by_section(request, family)
    return blend_prompts(prompts, video_indices[number - 1], request.prompt_blend)


def seed_of(number: int, request: GenerationRequest, family: Family) -> int:
    _, seeds, _, video_indices = _by_section(request, family)
    seed = seeds[video_indices[number - 1]]
    return request.seed if seed is None else seed


def lora_weights_of(number: int, request: GenerationRequest, family: Family) -> dict[str, float]:
    _, _, weights_by_section, video_indices = _by_section(request, family)
    return weights_by_section[video_indices[number - 1]]


def cuts_of(request: GenerationRequest, family: Family) -> tuple[int, ...]:
    """List the video indices of the sections that begin with a cut to another text, in inverted order.

    What comes later is made first there. It begins where what comes before it ends only if that is drafted.
    """
    if request.mode == "forward" or request.prompt_blend or request.one_frame:
        return ()
    prompts, *_ = _by_section(request, family)
    count = len(prompts) - request.is_loop
    pictures = pictures_by_index(request, family, count)
    cuts = (index for index in range(1, count) if prompts[index] != prompts[index - 1])
    return tuple(index for index in cuts if index not in pictures)


def steps_of(request: GenerationRequest, info: ModelInfo) -> list[int]:
    if request.finishing:
        return [len(segment) for segment in request.finishing.segments]
    num_draft_steps = len(cuts_of(request, info.family)) * request.steps
    steps = [info.steps_in(section.number, request.steps) for section in info.family.sections(request)]
    return [steps[0] + num_draft_steps, *steps[1:]]


def drafts_of(number: int, request: GenerationRequest, family: Family) -> tuple[int, ...]:
    """Each draft begins where the one before it ends, and the section begins where the last one ends."""
    section = family.sections(request)[number - 1]
    video_index = -1 if section.is_closing else section.video_index
    picture_index = max(pictures_by_index(request, family, video_index + 1), default=0)
    return tuple(cut - 1 for cut in cuts_of(request, family) if picture_index < cut <= video_index)


def drafted_prompts(number: int, request: GenerationRequest, family: Family) -> list[tuple[str, int | None]]:
    prompts, seeds, *_ = _by_section(request, family)
    return [(prompts[index], seeds[index]) for index in drafts_of(number, request, family)]


@lru_cache(maxsize=8)  # it is called for each section
def _by_section(
    request: GenerationRequest, family: Family
) -> tuple[Sequence[str], Sequence[int | None], Sequence[dict[str, float]], Sequence[int]]:
    sections = family.sections(request)
    timeline = Timeline.of(request.prompt)
    lengths = len(sections), sections.section_seconds
    return (
        timeline.prompts_by_section(*lengths),
        timeline.seeds_by_section(*lengths),
        timeline.weights_by_section(*lengths),
        tuple(section.video_index for section in sections),
    )


def all_prompts(request: GenerationRequest, lineage: Lineage, family: Family) -> tuple[str, ...]:
    prompts: dict[str, None] = {}
    for section in family.sections(request):
        section_request = lineage.request_for(section.number, request)
        prompts |= dict.fromkeys(prompt for prompt, _ in prompts_of(section.number, section_request, family))
        prompts |= dict.fromkeys(section_request.prompts[1:])
    return tuple(prompts)

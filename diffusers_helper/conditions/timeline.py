"""What conditions each section: the prompt's words for its time, and the pictures between which it lies.

A prompt says what happens when, as in `a red ball [0s: moves right] [2.4s-4.8s: moves up]`.

A text in brackets that begins with a time is a *cue*. It holds for whole sections, since each section has one
condition. Text outside of brackets holds for the sections without a cue. A cue whose text is a seed or the
weight of a LoRA, as in `[2.4s-3.6s: seed 7]` and `[2.4s: lora film:0.5]`, gives its sections that instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.lora_choice import Choice, choices_of
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.provenance.lineage import Lineage
from diffusers_helper.request import END_PICTURE, SETTINGS, START_PICTURE, GenerationRequest, placed_name

_TIME = r"(\d{1,9}(?:\.\d*)?)\s*s"
_REFERENCES = 0.3  # of what the vision encoder sees for a single picture, as in kijai's wrapper
_SEED = re.compile(r"seed (\d{1,19})")
_LORA = re.compile(r"lora (\S.*:[+-]?(?:\d+\.?\d*|\.\d+))")
_CUE = re.compile(rf"\[\s*{_TIME}\s*(?:-\s*{_TIME}\s*)?:([^\[\]]*)\]")

Words = tuple[tuple[str, float], ...]
"""The texts that condition a section, each with its share; the shares sum to 1, and the last text leads."""


@dataclass(frozen=True, slots=True)
class Cue:
    """A text and the seconds of the video for which it holds; `end` is None if it is open."""

    words: str
    begin: float
    end: float | None

    def sections(self, seconds: float, *, otherwise: float) -> range:
        """Return the places of the sections that it covers, of so many seconds each.

        Both times are moved to the nearest border between sections, and at least one section is covered.

        Args:
            otherwise: The end if it is open.
        """
        first, end = math.floor(self.begin / seconds + 0.5), otherwise if self.end is None else self.end
        return range(first, max(first + 1, math.ceil(end / seconds - 0.5)))

    def moved(self, sections: int, seconds: float) -> tuple[tuple[float, float], ...]:
        """Return its written times that are not on a border, each with the border that it is moved to."""
        covered = self.sections(seconds, otherwise=self.begin)
        places = ((self.begin, covered.start), (self.end, min(covered.stop, sections)))
        pairs = [(time, place * seconds) for time, place in places if time is not None]
        return tuple((time, border) for time, border in pairs if not math.isclose(time, border, abs_tol=1e-6))

    def __str__(self) -> str:
        times = f"{self.begin:.9g}s" if self.end is None else f"{self.begin:.9g}s-{self.end:.9g}s"
        return f"[{times}: {self.words}]" if self.words else f"[{times}:]"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A prompt in its parts.

    Attributes:
        cues: The cues with words, by the time at which they begin.
        others: Those with a seed or the weight of a LoRA, in the same way.
    """

    rest: str
    cues: tuple[Cue, ...]
    others: tuple[Cue, ...] = ()

    @classmethod
    def of(cls, prompt: str) -> Timeline:
        """Return the parts of a prompt. A prompt without cues stays as it is.

        Raises:
            InputError: If a cue ends before it begins, or if a seed or a weight is out of range.
        """
        found = list(_CUE.finditer(prompt))
        if not found:
            return cls(prompt, ())
        cues: list[Cue] = []
        for match in found:
            begin, end = float(match[1]), float(match[2]) if match[2] else None
            if end is not None and end <= begin:
                raise InputError(
                    setting="prompt", value=match[0], expected="an end after its begin",
                    remedy=f"Write [{match[1]}s: ...] to let it last until the next one.",
                )  # fmt: skip
            cues.append(Cue(_plain(match[3]), begin, end))
        cues.sort(key=lambda cue: cue.begin)
        others = tuple(cue for cue in cues if _seed(cue.words) is not None or _lora(cue.words))
        rest = _plain(_CUE.sub(" ", prompt))
        return cls(rest, tuple(cue for cue in cues if cue not in others), others)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all texts, each once: those of the cues after the rest, if there is any."""
        rest = (self.rest,) if self.rest or not self.cues else ()
        return tuple(dict.fromkeys((*rest, *(cue.words for cue in self.cues))))

    def words(self, sections: int, seconds: float) -> tuple[str, ...]:
        """Return the text of each section, in the order of the video.

        A cue without an end lasts until the next one begins. Where cues overlap, the later one holds. Without
        a text outside of brackets, a gap continues the text before it, and the first gap takes the first
        cue's text.
        """
        rest = self.rest if self.rest or not self.cues else None
        before, found = self.texts[0], _held(self.cues, sections, seconds)
        texts = (rest if text is None else text for text in found)
        return tuple(before := before if text is None else text for text in texts)

    def seeds(self, sections: int, seconds: float) -> tuple[int | None, ...]:
        """Return the seed of each section, as `words` does; None for those with the video's own."""
        seeded = [cue for cue in self.others if not _lora(cue.words)]
        return tuple(None if text is None else _seed(text) for text in _held(seeded, sections, seconds))

    @property
    def loras(self) -> tuple[str, ...]:
        """Return the names of the LoRAs whose weights it changes."""
        return tuple(dict.fromkeys(one.file for cue in self.others if (one := _lora(cue.words))))

    def weights(self, sections: int, seconds: float) -> tuple[dict[str, float], ...]:
        """Return the changed weights of LoRAs by name for each section, as `words` does."""
        found = tuple(dict[str, float]() for _ in range(sections))
        for name in self.loras:
            cues = [cue for cue in self.others if (one := _lora(cue.words)) and one.file == name]
            for of_section, text in zip(found, _held(cues, sections, seconds), strict=True):
                of_section |= {name: one.weight} if text and (one := _lora(text)) else {}
        return found

    def with_words(self, words: Sequence[str], seconds: float) -> Timeline:
        """Return the timeline in which the sections have these texts; this one if they have them already.

        A text that the rest of the prompt held stays outside of brackets, and cues after the end of the video
        stay. Brackets within a cue become round ones, since nothing could tell them from its own.
        """
        before = [_plain(text) for text in self.words(len(words), seconds)]
        if [_plain(text) for text in words] == before:
            return self
        texts, rest = [_no_cue(text) for text in words], _no_cue(self.rest)
        held = [text for text, old in zip(texts, before, strict=True) if old == _plain(self.rest)]
        if len(set(texts)) == 1 or (held and rest not in held):  # the rest follows the edit
            rest = (*held, *texts)[0]
        begins = [at for at, text in enumerate(texts) if at == 0 or text != texts[at - 1]]
        cues: list[Cue] = []
        for begin, end in pairwise([*begins, len(texts)]):
            if texts[begin] != rest or not rest:
                is_open = not rest or texts[end : end + 1] != [rest]
                cues.append(Cue(_round(texts[begin]), begin * seconds, None if is_open else end * seconds))
        later = [cue for cue in self.cues if cue.sections(seconds, otherwise=cue.begin).start >= len(texts)]
        return Timeline(rest, (*cues, *later) if rest or cues[1:] or later else (), self.others)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.rest, *map(str, (*self.cues, *self.others)))))


def _held(cues: Sequence[Cue], sections: int, seconds: float) -> list[str | None]:
    """Return the text of the cue that holds for each section; None where none does."""
    found: list[str | None] = [None] * sections
    begins = [*(cue.begin for cue in cues[1:]), sections * seconds]
    for cue, following in zip(cues, begins, strict=False):
        for place in cue.sections(seconds, otherwise=following):
            if place < sections:
                found[place] = cue.words
    return found


def _seed(words: str) -> int | None:
    """Return the seed that a cue's text is, or None for any other text."""
    match = _SEED.fullmatch(words)
    return SETTINGS["seed"].check(int(match[1])) if match else None


def _lora(words: str) -> Choice | None:
    """Return the LoRA and its weight that a cue's text is, or None for any other text."""
    match = _LORA.fullmatch(words)
    return choices_of(match[1])[0] if match else None


def with_words(prompt: str, words: Sequence[str], seconds: float) -> str:
    """Return a prompt changed as by `Timeline.with_words`, or as it was written if that changes nothing."""
    before = Timeline.of(prompt)
    after = before.with_words(words, seconds)
    return prompt if after is before else str(after)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _round(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


def _no_cue(text: str) -> str:
    """Return a text with single spaces, in which nothing counts as a cue."""
    return _round(_plain(text)) if _CUE.search(_plain(text)) else _plain(text)


def blended(texts: Sequence[str], place: int, over: int) -> Words:
    """Return the texts of one section where each change takes several sections.

    In the i-th section after a change (from 0), the new text has a share of (i + 1) / (over + 1).

    Args:
        over: The sections that a change takes; 0 for a cut.
    """
    begin = place
    while begin > 0 and texts[begin - 1] == texts[place]:
        begin -= 1
    since = place - begin
    if begin == 0 or since >= over:
        return ((texts[place], 1.0),)
    share = (since + 1) / (over + 1)
    return (texts[begin - 1], 1 - share), (texts[place], share)


def words_of(number: int, own: GenerationRequest, family: Family) -> Words:
    """Return the texts that condition one section of a job, with their shares.

    Args:
        number: The section's number, in the order of making.
        own: The request for the section (`Lineage.request_for`). Kept sections stay at their times in the
            video that they are from.
    """
    texts, _, _, places = _planned(own, family)
    return blended(texts, places[number - 1], own.prompt_blend)


def seed_of(number: int, own: GenerationRequest, family: Family) -> int:
    """Return the seed of one section; the arguments are those of `words_of`."""
    _, seeds, _, places = _planned(own, family)
    seed = seeds[places[number - 1]]
    return own.seed if seed is None else seed


def weights_of(number: int, own: GenerationRequest, family: Family) -> dict[str, float]:
    """Return the weights of LoRAs that one section changes, by name, as `words_of` does."""
    _, _, weights, places = _planned(own, family)
    return weights[places[number - 1]]


def pictures_of(number: int, own: GenerationRequest, family: Family) -> Words:
    """Return the pictures that a section is shown, by name, with their shares, as `words_of` does.

    The shares change linearly from each picture to the next one in the video, and the middle of the section
    counts; or both pictures have the same share throughout, where the request wants that.
    """
    if own.one_frame and own.placed:
        share = _REFERENCES / len(own.placed)
        names = (placed_name(n) for n in range(1, len(own.placed) + 1))
        return (START_PICTURE, 1 - _REFERENCES), *((name, share) for name in names)
    count, section = len(family.plan(own.seconds, own.mode)), family.sections(own)[number - 1]
    if section.is_closing:  # it leads to the start
        return ((START_PICTURE, 1.0),)
    known = {0: START_PICTURE, **_placed(own, family, count)} | (
        {count: END_PICTURE} if own.end_image else {}
    )
    place = section.video_position
    before = max(at for at in known if at <= place)
    after = min((at for at in known if at > place), default=None)
    if after is None:
        return ((known[before], 1.0),)
    strength = own.end_strength if known[after] == END_PICTURE else 1.0
    place = (before + after - 1) / 2 if own.vision_change == "constant" else place
    share = strength * (place + 0.5 - before) / (after - before)
    return (known[before], 1 - share), (known[after], share)


def start_of(number: int, own: GenerationRequest, family: Family) -> str:
    """Return the name of the picture that a section sees at its start, which is the last one before it."""
    sections = family.sections(own)
    if sections[number - 1].is_closing:
        return START_PICTURE
    known = {0: START_PICTURE, **_placed(own, family, len(sections))}
    return known[max(place for place in known if place <= sections[number - 1].video_position)]


def cuts_of(request: GenerationRequest, family: Family) -> tuple[int, ...]:
    """Return the places in the video of the sections that begin with a cut to other words, in inverted order.

    What comes later is made first there, and begins where what comes before it ends only if that is drafted.
    """
    if request.mode == "forward" or request.prompt_blend or request.one_frame:
        return ()
    texts, *_ = _planned(request, family)
    count = len(texts) - request.is_loop
    placed = _placed(request, family, count)
    return tuple(at for at in range(1, count) if texts[at] != texts[at - 1] and at not in placed)


def steps_of(request: GenerationRequest, info: ModelInfo) -> list[int]:
    """Return the number of steps of each section; those of the drafts come before the first one's."""
    drafts = len(cuts_of(request, info.family)) * request.steps
    each = [info.steps_in(one.number, request.steps) for one in info.family.sections(request)]
    return [each[0] + drafts, *each[1:]]


def drafts_of(number: int, own: GenerationRequest, family: Family) -> tuple[int, ...]:
    """Return the places of the sections that are drafted for one section, in the order of the video.

    Each begins where the one before it ends, and the section begins where the last one ends. The arguments
    are those of `words_of`.
    """
    section = family.sections(own)[number - 1]
    place = -1 if section.is_closing else section.video_position
    first = max(_placed(own, family, place + 1), default=0)
    return tuple(cut - 1 for cut in cuts_of(own, family) if first < cut <= place)


def drafted_words(number: int, own: GenerationRequest, family: Family) -> list[tuple[str, int | None]]:
    """Return the text and the seed of each section that `drafts_of` names."""
    texts, seeds, *_ = _planned(own, family)
    return [(texts[at], seeds[at]) for at in drafts_of(number, own, family)]


def _placed(request: GenerationRequest, family: Family, sections: int) -> dict[int, str]:
    """Return the names of the pictures at times by the places of the sections that begin with them."""
    found = {one.place(family.section_seconds): placed_name(n) for n, one in enumerate(request.placed, 1)}
    return {place: name for place, name in found.items() if place < sections}


@lru_cache(maxsize=8)  # it is asked for each section anew
def _planned(
    request: GenerationRequest, family: Family
) -> tuple[Sequence[str], Sequence[int | None], Sequence[dict[str, float]], Sequence[int]]:
    """Return texts, seeds and weights of the sections as in the video, and their places as they are made."""
    sections, timeline = family.sections(request), Timeline.of(request.prompt)
    length = len(sections), family.section_seconds
    places = tuple(section.video_position for section in sections)
    return timeline.words(*length), timeline.seeds(*length), timeline.weights(*length), places


def texts_of(request: GenerationRequest, lineage: Lineage, family: Family) -> tuple[str, ...]:
    """Return all prompts that a job needs, each once, with the negative ones that have an effect."""
    found: dict[str, None] = {}
    for section in family.sections(request):
        own = lineage.request_for(section.number, request)
        found |= dict.fromkeys(text for text, _ in words_of(section.number, own, family))
        found |= dict.fromkeys(own.texts[1:])
    return tuple(found)

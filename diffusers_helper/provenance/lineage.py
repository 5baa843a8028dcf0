"""The lineage of a branch, which is a video whose first sections were made with other settings than the rest.

A section's latents depend on its own settings and on the sections made before it. So the request of a branch
and the spans of its earlier sections determine the video, which can be made again from them alone.

Recipes, lineages and the origins of latents record settings. Those of version 0.1 are always recorded. A
later one is recorded only if it differs from its default, so that a file without it means the default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Self

from diffusers_helper.errors import InputError
from diffusers_helper.families.family import Family
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.packing import SectionPlan
from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.foreign_errors import is_storage_trouble
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.setting import Scope
from diffusers_helper.strangers.limited_json import plain_json

_FIRST = (
    "prompt", "negative", "seconds", "seed", "steps", "mode", "resolution", "guidance", "cfg", "cfg_rescale",
    "crf", "sampler", "model",
)  # fmt: skip


def names_of(*scopes: Scope) -> tuple[str, ...]:
    """Return the names of the settings that have one of these scopes."""
    return tuple(name for name, setting in SETTINGS.items() if setting.scope in scopes)


def recorded(request: GenerationRequest, *scopes: Scope) -> dict[str, Any]:
    """Return the recorded settings of a request, among those of these scopes."""
    values = {name: getattr(request, name) for name in names_of(*scopes)}
    return {
        name: value for name, value in values.items() if name in _FIRST or value != SETTINGS[name].default
    }


def recorded_later(request: GenerationRequest, *scopes: Scope) -> dict[str, Any]:
    """Return the recorded settings that version 0.1 did not have."""
    found = recorded(request, *scopes)
    return {name: value for name, value in found.items() if name not in _FIRST}


@dataclass(frozen=True, slots=True)
class Span:
    """A run of consecutive sections with the same settings, which begins after the end of the previous span.

    Attributes:
        last: The number of its last section, in the order of making.
        settings: The recorded settings of its sections, without the length where that has no effect.
    """

    last: int
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, last: int, request: GenerationRequest) -> Self:
        settings = recorded(request, "section")
        if not request.depends_on_length:
            del settings["seconds"]
        return cls(last, settings)

    def over(self, request: GenerationRequest) -> GenerationRequest:
        """Return a request with the settings of this span in place of its own."""
        later = {name: SETTINGS[name].default for name in names_of("section") if name not in _FIRST}
        return replace(request, **{**later, **self.settings})

    def to_dict(self) -> dict[str, Any]:
        return {"sections": self.last, "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Return the span of a dict that `to_dict` wrote.

        Raises:
            InputError: If one of its settings has another value than it may have.
            KeyError, TypeError, ValueError, AttributeError: If the data is anything else.
        """
        fields: Any = data
        checks = {name: SETTINGS[name] for name in names_of("section")}
        settings = {name: checks[name].check(value) for name, value in fields["settings"].items()}
        if (last := index(fields["sections"])) < 1:
            raise ValueError(last)
        return cls(last, settings)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a job's first sections; empty for a job that is not a branch.

    Attributes:
        spans: The spans before the sections with the job's own settings, in order.
        parent: The id of the job that this one was branched from; "" if it was made from a recipe.
        kept: The number of sections whose files were copied from the parent.
    """

    spans: tuple[Span, ...] = ()
    parent: str = ""
    kept: int = 0

    def request_for(self, number: int, request: GenerationRequest) -> GenerationRequest:
        for span in self.spans:
            if number <= span.last:
                return span.over(request)
        return request

    def requests(self, request: GenerationRequest) -> tuple[GenerationRequest, ...]:
        """Return the requests with the settings of each span, followed by the job's own."""
        return (*(span.over(request) for span in self.spans), request)

    def root(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request for the first section, whose seed also determines the picture's latent."""
        return self.request_for(1, request)

    def before(self, number: int) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.last < number)

    def sections(
        self, request: GenerationRequest, family: Family = FRAMEPACK, cuts: Sequence[int] = ()
    ) -> SectionPlan:
        """Return the plan of `Family.sections`, in which earlier spans keep the plan for their own length.

        Raises:
            InputError: If the spans do not fit the request.
        """
        self._check(request, family)
        plan = family.sections(request, cuts)
        if request.mode == "forward" or not self.spans:
            return plan
        earlier = [
            family.sections(self.request_for(section.number, request))[section.number - 1]
            for section in plan.sections[: self.spans[-1].last]
        ]
        placed = tuple(
            replace(section, padding=before.padding, indices=before.indices)
            for section, before in zip(plan.sections, earlier, strict=False)
        )
        return replace(plan, sections=placed + plan.sections[len(placed) :])

    def _check(self, request: GenerationRequest, family: Family) -> None:
        total, last = len(family.plan(request.seconds, request.mode)), 0
        for span in self.spans:
            own = len(family.plan(span.settings.get("seconds", request.seconds), request.mode))
            most = min(total - 1, own - (request.mode == "inverted"))
            if not last < span.last <= most:
                raise InputError(
                    f"An earlier span ends with section {span.last}; expected a section from {last + 1} to "
                    f"{most}.",
                    "Choose a longer video, or keep fewer sections.",
                    setting="seconds",
                )
            last = span.last

    def to_dict(self) -> dict[str, Any]:
        spans = [span.to_dict() for span in self.spans]
        return {"parent": self.parent, "kept": self.kept, "spans": spans}

    def write(self, file: Path) -> None:
        """Write `lineage.json`, unless the lineage is empty."""
        if self != Lineage():
            text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
            write_atomic(file, text.encode() + b"\n")

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return the lineage in a file, or an empty one if the file does not exist.

        Raises:
            InputError: If the file is damaged.
            OSError: If the disk is out of reach.
        """
        try:
            data = plain_json(read_file(file))
            spans = tuple(Span.from_dict(item) for item in data["spans"])
            return cls(spans, str(data["parent"]), index(data["kept"]))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if is_storage_trouble(error):
                raise
            raise InputError(
                f"{file} is damaged ({error}); expected the origin of a branch.", "Make the branch again."
            ) from error


def joined(spans: Sequence[Span], request: GenerationRequest) -> tuple[Span, ...]:
    """Return the spans without those that have the same settings as the next span, or as the request."""
    kept: list[Span] = []
    following = Span.of(0, request).settings
    for span in reversed(spans):
        settings = Span.of(0, span.over(request)).settings
        if settings != following:
            kept.append(Span(span.last, settings))
            following = settings
    return tuple(reversed(kept))

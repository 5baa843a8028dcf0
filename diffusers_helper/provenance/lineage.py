"""The lineage of a branch, a video whose first sections were made with other settings than the later ones.

Settings of version 0.1 are always recorded. A later one is recorded only if it differs from its default, so
that a file without it means the default.
"""

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
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.setting import Scope
from diffusers_helper.untrusted.limited_json import plain_json

_FIRST = (
    "prompt", "negative", "seconds", "seed", "steps", "mode", "resolution", "guidance", "cfg", "cfg_rescale",
    "crf", "sampler", "model",
)  # fmt: skip


def setting_names(*scopes: Scope) -> tuple[str, ...]:
    return tuple(name for name, setting in SETTINGS.items() if setting.scope in scopes)


def recorded_settings(request: GenerationRequest, *scopes: Scope) -> dict[str, Any]:
    values = {name: getattr(request, name) for name in setting_names(*scopes)}
    return {
        name: value for name, value in values.items() if name in _FIRST or value != SETTINGS[name].default
    }


def later_settings(request: GenerationRequest, *scopes: Scope) -> dict[str, Any]:
    return {name: value for name, value in recorded_settings(request, *scopes).items() if name not in _FIRST}


@dataclass(frozen=True, slots=True)
class Span:
    """A run of sections with the same recorded settings, up to section `last` in order of making."""

    last: int
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, last: int, request: GenerationRequest) -> Self:
        settings = recorded_settings(request, "section")
        if not request.depends_on_length:
            del settings["seconds"]
        return cls(last, settings)

    def applied_to(self, request: GenerationRequest) -> GenerationRequest:
        defaults = {name: SETTINGS[name].default for name in setting_names("section") if name not in _FIRST}
        return replace(request, **{**defaults, **self.settings})

    def to_dict(self) -> dict[str, Any]:
        return {"sections": self.last, "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Parse what `to_dict` wrote; InputError, KeyError, TypeError, ValueError or AttributeError else."""
        fields: Any = data
        checks = {name: SETTINGS[name] for name in setting_names("section")}
        settings = {name: checks[name].check(value) for name, value in fields["settings"].items()}
        if (last := index(fields["sections"])) < 1:
            raise ValueError(last)
        return cls(last, settings)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a job's first sections, of which `kept` are from the parent; "" is a recipe."""

    spans: tuple[Span, ...] = ()
    parent: str = ""
    kept: int = 0

    def request_for(self, number: int, request: GenerationRequest) -> GenerationRequest:
        for span in self.spans:
            if number <= span.last:
                return span.applied_to(request)
        return request

    def requests(self, request: GenerationRequest) -> tuple[GenerationRequest, ...]:
        return (*(span.applied_to(request) for span in self.spans), request)

    def root(self, request: GenerationRequest) -> GenerationRequest:
        """Make the request for the first section, whose seed also determines the picture's latent."""
        return self.request_for(1, request)

    def sections(
        self, request: GenerationRequest, family: Family = FRAMEPACK, cuts: Sequence[int] = ()
    ) -> SectionPlan:
        """Plan as `Family.sections` does, where earlier spans keep the plan for their own length."""
        self._check(request, family)
        plan = family.sections(request, cuts)
        if request.mode == "forward" or not self.spans:
            return plan
        earlier_sections = [
            family.sections(self.request_for(section.number, request))[section.number - 1]
            for section in plan.sections[: self.spans[-1].last]
        ]
        span_sections = tuple(
            replace(section, padding=earlier_section.padding, indices=earlier_section.indices)
            for section, earlier_section in zip(plan.sections, earlier_sections, strict=False)
        )
        return replace(plan, sections=span_sections + plan.sections[len(span_sections) :])

    def _check(self, request: GenerationRequest, family: Family) -> None:
        num_sections = len(family.plain_sections(request))
        last = 0
        for span in self.spans:
            num_span_sections = len(family.plain_sections(request, span.settings.get("seconds")))
            max_last = min(num_sections - 1, num_span_sections - (request.mode == "inverted"))
            if not last < span.last <= max_last:
                raise InputError(
                    f"An earlier span ends with section {span.last}; expected a section from {last + 1} to "
                    f"{max_last}.",
                    "Choose a longer video, or keep fewer sections.",
                    setting="seconds",
                )
            last = span.last

    def to_dict(self) -> dict[str, Any]:
        return {"parent": self.parent, "kept": self.kept, "spans": [span.to_dict() for span in self.spans]}

    def write(self, file: Path) -> None:
        if self != Lineage():
            text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
            write_atomic(file, text.encode() + b"\n")

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the lineage in a file, or an empty one. InputError is raised if it is damaged."""
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


def merged_spans(spans: Sequence[Span], request: GenerationRequest) -> tuple[Span, ...]:
    merged: list[Span] = []
    next_settings = Span.of(0, request).settings
    for span in reversed(spans):
        settings = Span.of(0, span.applied_to(request)).settings
        if settings != next_settings:
            merged.append(Span(span.last, settings))
            next_settings = settings
    return tuple(reversed(merged))

"""The settings of an earlier video that have no controls, so the form carries them in a hidden field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from diffusers_helper.errors import InputError
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.request import SETTINGS
from diffusers_helper.strangers.limited_json import parse_json

_MOST_CHARACTERS = 200_000


@dataclass(frozen=True, slots=True)
class Extras:
    """The settings without controls.

    Attributes:
        settings: Settings that have no controls, such as the sampler, by name.
        spans: The spans of first sections that were made with other settings.
    """

    settings: Mapping[str, Any]
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any], spans: tuple[Span, ...]) -> Self:
        """Return the settings of a video that must be carried: unusual ones that have no control."""
        unusual = {
            name: value for name, value in settings.items()
            if name in SETTINGS and not SETTINGS[name].on_page and value != SETTINGS[name].default
        }  # fmt: skip
        return cls(unusual, spans)

    def to_text(self) -> str:
        """Return the content of the hidden field, or "" if there is nothing to carry."""
        if not self.settings and not self.spans:
            return ""
        spans = [span.to_dict() for span in self.spans]
        return json.dumps({"settings": dict(self.settings), "earlier": spans}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: object) -> Self:
        """Return the content of the hidden field, which is JSON of unknown origin.

        Raises:
            InputError: If it is not what `to_text` wrote.
        """
        if not isinstance(text, str) or not text:
            return cls({})
        try:
            data: Any = parse_json(text.encode()) if len(text) <= _MOST_CHARACTERS else None
            settings = {name: SETTINGS[name].check(value) for name, value in data["settings"].items()}
            return cls(settings, tuple(Span.from_dict(item) for item in data["earlier"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                "The settings of the earlier video cannot be read.", "Forget them, or restore them again."
            ) from error

    @property
    def lineage(self) -> Lineage:
        """Return the lineage of a job that is made with these settings."""
        return Lineage(self.spans)

    @property
    def words(self) -> str:
        """Return sentences about the carried settings, or "" if there are none."""
        reported = [
            f"{SETTINGS[name].label}: {SETTINGS[name].shown(value)}" for name, value in self.settings.items()
        ]
        if self.spans:
            last = self.spans[-1].last
            these = "The first section is" if last == 1 else f"The first {last} sections are"
            reported.append(f"{these} made with the settings of the video that was branched.")
        return " ".join(f"{one.rstrip('.')}." for one in reported)

"""The description of a setting, from which its control, its argument and its parameter are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from diffusers_helper.errors import InputError
from diffusers_helper.machine.terminal import is_whole

# This is enough for any prompt, whose tokens the model's tokenizer limits (`conditions.prompts`).
MAX_PROMPT_CHARACTERS = 4000

Section = Literal["What to make", "Look", "Size and output", "Memory"]
Scope = Literal["section", "video", "input", "vae", "memory"]


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """The description of one setting, for the page, the command line and the endpoint.

    Attributes:
        help: One or two sentences that say what changing it does; they name other settings in back quotes.
        multiple: The number that a whole number must be a multiple of.
        otherwise: A phrase for the value in effect if the setting is left empty.
        scope: What it determines: each "section" for itself; the whole "video"; the "input", which is
            recorded by its content; the work of the "vae", recorded as it was in effect; or only "memory".
        items: For a text of lines, a function that returns what they name, or raises InputError. As text,
            each item is a line in the one form that the request stores.
        crop: For the path of a picture (`conditions.pictures`), the setting of the part of it to keep.
        name, kind, is_optional, default: The field's name, its type, whether it may be None, and its default.
            `settings_of` fills them in.
    """

    label: str
    help: str
    section: Section
    low: float = 0
    high: float = 0
    step: float = 1
    multiple: int = 1
    choices: Mapping[str, str] = field(default_factory=dict[str, str])
    unit: str = ""
    otherwise: str = ""
    scope: Scope = "video"
    on_page: bool = True
    items: Callable[[str], Iterable[object]] | None = None
    crop: str = ""
    words: Callable[[str], str] = str
    name: str = ""
    kind: type = str
    is_optional: bool = False
    default: Any = None

    @property
    def is_number(self) -> bool:
        return self.kind is not str

    @property
    def is_picture(self) -> bool:
        return bool(self.crop)

    @property
    def short_label(self) -> str:
        return self.label.partition(" (")[0]

    @property
    def expected(self) -> str:
        """Return the possible values as a phrase that can follow the word "expected"."""
        if self.choices:
            return " or ".join(self.choices)
        if not self.is_number:
            return "text"
        kind = "a whole number" if self.kind is int else "a number"
        multiple = f", a multiple of {self.multiple}" if self.multiple > 1 else ""
        return f"{kind} from {_bound(self.low)} to {_bound(self.high)}{multiple}"

    @property
    def default_words(self) -> str:
        """Return the default as short text, or a phrase for the value in effect if the setting is empty."""
        return self.otherwise or (f"{self.default:.15g}" if self.is_number else self.default or "")

    def shown(self, value: Any) -> str:
        if self.is_number:
            return f"{value if self.kind is int else f'{value:g}'} {self.unit}".rstrip()
        return self.words(self.choices.get(value, value)) or "none"

    @property
    def takes(self) -> str:
        """Return a clause that names the possible values, or "" for text."""
        if self.choices:
            # A terminal may lack the middle dot.
            values = (f"{value} ({words.replace(' ·', ',')})" for value, words in self.choices.items())
            return f"It takes {' or '.join(values)}"
        return f"It takes {self.expected}" if self.is_number else ""

    def check(self, value: object) -> Any:
        """Validate a value, and return it in the type that the request stores.

        Raises:
            InputError: If the value cannot be used.
        """
        if value is None and self.is_optional:
            return None
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                raise self.refusal(value, f"Set `{self.name}` to one of them.")
            return value
        return self._number(value) if self.is_number else self._text(value)

    def refusal(self, value: object, remedy: str) -> InputError:
        return InputError(setting=self.name, value=value, expected=self.expected, remedy=remedy)

    def _number(self, value: object) -> float | int:
        refusal = self.refusal(value, f"Set `{self.name}` to a value in that range.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refusal
        # NaN lies in no range. The range is checked before the conversion, since a huge integer fits no
        # float.
        if not self.low <= value <= self.high:
            raise refusal
        if self.kind is int and (value != int(value) or int(value) % self.multiple):
            raise refusal
        return self.kind(value)

    def _text(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.refusal(value, f"Give `{self.name}` as text.")
        if len(value) > MAX_PROMPT_CHARACTERS:
            found, most = f"has {len(value)} characters", f"at most {MAX_PROMPT_CHARACTERS}"
            raise InputError(setting=self.name, found=found, expected=most, remedy="Shorten it.")
        if not is_whole(value):
            remedy = "Type it again, or rename the file if it is a file's name."
            found = "has a character that no file can hold"
            raise InputError(setting=self.name, found=found, expected="plain text", remedy=remedy)
        return text_of(self.items(value)) if self.items else value


def number_or_text(text: str) -> int | float | str | None:
    """Return a number, or None for "auto". Other text is returned unchanged, for the request to refuse."""
    if text == "auto":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def text_of(items: Iterable[object]) -> str:
    """Return the text of a setting whose lines name these items."""
    return "\n".join(map(str, items))


@cache
def settings_of(request: type) -> dict[str, SettingInfo]:
    """Return the settings that a class such as `GenerationRequest` defines, in the order of its fields."""
    hints, found = get_type_hints(request, include_extras=True), dict[str, SettingInfo]()
    for one in fields(request):
        kind, info = get_args(hints[one.name])
        kinds = [part for part in get_args(kind) or (kind,) if part is not type(None)]
        found[one.name] = replace(
            info,
            name=one.name,
            kind=str if get_origin(kind) is Literal else kinds[0],
            is_optional=type(None) in get_args(kind),
            default=None if one.default is MISSING else one.default,
        )
    return found


def _bound(value: float) -> str:
    """Return a bound as short text, such as 0.001 or 2^63 - 1."""
    power = int(value + 1).bit_length() - 1
    return f"2^{power} - 1" if power >= 53 else f"{value:g}"

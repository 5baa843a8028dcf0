"""The description of a setting, from which its control, its argument and its parameter are made."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin, get_type_hints

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.machine.terminal import is_plain_text

# This is enough for any prompt, whose tokens the model's tokenizer limits (`conditions.prompts`).
MAX_PROMPT_CHARACTERS = 4000

Section = Literal["What to make", "Look", "Size and output", "Memory"]
Scope = Literal["section", "video", "input", "vae", "memory"]


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """The description of one setting, for the page, the command line and the endpoint.

    Attributes:
        if_empty: A phrase for the value in effect if the setting is left empty.
        scope: What it determines: each "section" for itself; the whole "video"; the "input", which is
            recorded by its content; the work of the "vae", recorded as it was in effect; or only "memory".
        parse_lines: For a text of lines, a function that parses them, or raises InputError. `str` turns each
            item into a line in the form that the request stores.
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
    if_empty: str = ""
    scope: Scope = "video"
    on_page: bool = True
    parse_lines: Callable[[str], Iterable[object]] | None = None
    crop: str = ""
    summary: Callable[[str], str] = str
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
        if self.choices:
            return " or ".join(self.choices)
        if not self.is_number:
            return "text"
        kind = "a whole number" if self.kind is int else "a number"
        multiple = f", a multiple of {self.multiple}" if self.multiple > 1 else ""
        return f"{kind} from {_bound(self.low)} to {_bound(self.high)}{multiple}"

    @property
    def default_text(self) -> str:
        return self.if_empty or (f"{self.default:.15g}" if self.is_number else self.default or "")

    def display(self, value: Any) -> str:
        if self.is_number:
            unit = self.unit.removesuffix("s") if value == 1 else self.unit
            return f"{value if self.kind is int else f'{value:g}'} {unit}".rstrip()
        return self.summary(self.choices.get(value, value)) or "none"

    @property
    def possible_values_clause(self) -> str:
        if self.choices:
            # A terminal may lack the middle dot.
            values = (f"{value} ({words.replace(' ·', ',')})" for value, words in self.choices.items())
            return f"It takes {' or '.join(values)}"
        return f"It takes {self.expected}" if self.is_number else ""

    def check(self, value: object) -> Any:
        """Validate a value, or raise InputError, and convert it to the type that the request stores."""
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
        # NaN lies in no range. The range is checked first, since a huge integer cannot become a float.
        if not self.low <= value <= self.high:
            raise refusal
        if self.kind is int and (value != int(value) or int(value) % self.multiple):
            raise refusal
        return self.kind(value)

    def _text(self, value: object) -> str:
        if not isinstance(value, str):
            raise self.refusal(value, f"Give `{self.name}` as text.")
        if len(value) > MAX_PROMPT_CHARACTERS:
            problem, limit = f"has {len(value)} characters", f"at most {MAX_PROMPT_CHARACTERS}"
            raise InputError(setting=self.name, problem=problem, expected=limit, remedy="Shorten it.")
        if not is_plain_text(value):
            remedy = "Type it again, or rename the file if it is a file's name."
            problem = "has a character that no file can hold"
            raise InputError(setting=self.name, problem=problem, expected="plain text", remedy=remedy)
        return text_of(self.parse_lines(value)) if self.parse_lines else value


def number_or_text(text: str) -> int | float | str | None:
    """Parse a number, or None for "auto". Other text stays as it is, for the request to refuse."""
    if text == "auto":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def name_of(path: str) -> str:
    return PurePath(path).name


def lines_of(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]


def text_of(items: Iterable[object]) -> str:
    return "\n".join(map(str, items))


@cache
def settings_of(request: type) -> dict[str, SettingInfo]:
    hints = get_type_hints(request, include_extras=True)
    settings = dict[str, SettingInfo]()
    for request_field in fields(request):
        hint, info = get_args(hints[request_field.name])
        types = [part_type for part_type in get_args(hint) or (hint,) if part_type is not type(None)]
        settings[request_field.name] = replace(
            info,
            name=request_field.name,
            kind=str if get_origin(hint) is Literal else types[0],
            is_optional=type(None) in get_args(hint),
            default=None if request_field.default is MISSING else request_field.default,
        )
    return settings


def check_names(names: Iterable[str], settings: Mapping[str, SettingInfo]) -> None:
    for name in sorted({*names} - {*settings}):
        similar = ", ".join(get_close_matches(name, settings, cutoff=0.5))
        expected = f"one of {similar}" if similar else "the name of one, such as prompt or seconds"
        raise InputError(
            f"{short_repr(name)} is not a setting; expected {expected}.", "Correct it, or leave it out."
        )


def _bound(value: float) -> str:
    power = int(value + 1).bit_length() - 1
    return f"2^{power} - 1" if power >= 53 else f"{value:g}"

"""The settings for one video, as one frozen and validated object with a JSON form.

Each setting's type, default, range and texts are defined once, here. The page's form, the command line, the
endpoint and the table in docs/api.md are made from these definitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, Self, cast, get_args, get_origin, get_type_hints

from diffusers_helper.errors import InputError, PictureError, short_repr
from diffusers_helper.families.packing import MAX_SECONDS, MIN_SECONDS, Mode
from diffusers_helper.lora_choice import normal_text, shown

# A sampler is the function `sample_NAME` of the module NAME in `diffusers_helper.sampling`.
SAMPLERS = {"unipc": "UniPC", "euler": "Euler"}
VAE_PRECISIONS = {
    "auto": "Automatic", "fp32": "32 bit", "fp16": "16 bit", "bf16": "16 bit, wide range",
}  # fmt: skip
AUTO = "auto"
WEIGHT_TYPES = {
    AUTO: "Automatic", "default": "As in the files", "bf16": "16 bit, wide range", "fp16": "16 bit",
    "fp8_e4m3fn": "8 bit", "fp8_e5m2": "8 bit, wide range", "int8": "8 bit, whole numbers",
}  # fmt: skip
_ORDERS = {"inverted": "End first · I2V", "forward": "Forward · F1"}

# This is enough for any prompt, whose tokens the model's tokenizer limits (`conditions.prompts`).
MAX_PROMPT_CHARACTERS = 4000
MAX_SEED = 2**63 - 1

Section = Literal["What to make", "Look", "Size and output", "Memory"]
Scope = Literal["section", "video", "input", "vae", "memory"]


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """The description of one setting, for the page, the command line and the endpoint.

    Attributes:
        label: The setting's label, with the unit in brackets.
        help: One or two sentences that say what changing it does; they name other settings in back quotes.
        section: The group of settings that it belongs to.
        low, high, step: The bounds of a number, and the step of its slider.
        multiple: The number that a whole number must be a multiple of.
        choices: The possible values, each with its label.
        unit: The unit of a number, or the kind of a text.
        otherwise: A phrase for the value in effect if the setting is left empty.
        scope: What it determines: each "section" for itself; the whole "video"; the "input", which is
            recorded by its content; the work of the "vae", recorded as it was in effect; or only "memory".
        on_page: Whether the page has a control for it.
        is_list: Whether each line of a text is an entry of its own.
        is_picture: Whether a text is the path of a picture (`conditions.pictures`).
        normal: A function that returns a text in the one form that the request stores, or raises InputError.
        words: A function that returns a text as it is displayed.
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
    is_list: bool = False
    is_picture: bool = False
    normal: Callable[[str], str] = str
    words: Callable[[str], str] = str
    name: str = ""
    kind: type = str
    is_optional: bool = False
    default: Any = None

    @property
    def is_number(self) -> bool:
        """Return whether the setting's values are numbers."""
        return self.kind is not str

    @property
    def short_label(self) -> str:
        """Return the label without the part in brackets."""
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
        """Format a value of this setting for display."""
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
        """Return the error for an unusable value, which names the possible ones."""
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
            raise InputError(
                setting=self.name,
                found=f"has {len(value)} characters",
                expected=f"at most {MAX_PROMPT_CHARACTERS}",
                remedy="Shorten it.",
            )
        if "\0" in value:
            raise InputError(
                setting=self.name,
                found="contains a NUL character",
                expected="plain text",
                remedy="Type it again.",
            )
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                setting=self.name,
                found=f"is not valid Unicode (character {error.start + 1})",
                expected="plain text",
                remedy="Type it again, or rename the file if it is a file's name.",
            ) from error
        return self.normal(value)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """The settings of one video. On the CPU, the same request with the same model gives the same bytes."""

    # fmt: off
    image: Annotated[str, SettingInfo(
        "Picture", "The picture that the video starts from.", "What to make",
        unit="file", scope="input", is_picture=True)]
    prompt: Annotated[str, SettingInfo(
        "Prompt", "Describe what should happen in the video.", "What to make", unit="text", scope="section",
    )] = ""
    negative: Annotated[str, SettingInfo(
        "Negative Prompt", "Describe what should not happen. It has an effect only if `cfg` is above 1.",
        "Look", unit="text", scope="section",
    )] = ""
    seconds: Annotated[float, SettingInfo(
        "Total Video Length (Seconds)",
        "The length of the video, which is rounded to whole sections of 1.2 s.", "What to make",
        low=MIN_SECONDS, high=MAX_SECONDS, step=0.1, unit="seconds", scope="section",
    )] = 5.0
    seed: Annotated[int, SettingInfo(
        "Seed", "The number behind all randomness. The same seed and settings give the same video.", "Look",
        high=MAX_SEED, scope="section",
    )] = 31337
    steps: Annotated[int, SettingInfo(
        "Steps",
        "The number of denoising steps per section. More steps take more time; the model's own number suits "
        "it best.",
        "Look", low=1, high=100, scope="section",
    )] = 25
    mode: Annotated[Mode, SettingInfo(
        "Order", "End first is steadier; forward can continue.", "What to make", choices=_ORDERS,
        otherwise="the model's own",
    )] = "inverted"
    resolution: Annotated[int | None, SettingInfo(
        "Resolution",
        "The side, in pixels, of a square with the video's area. A higher value takes more time and memory; "
        "the model's own value suits it best.",
        "Size and output", low=64, high=1280, step=16, unit="pixels", otherwise="the model's own",
    )] = None
    guidance: Annotated[float, SettingInfo(
        "Distilled CFG Scale",
        "A higher value makes the video follow the prompt more closely, at no cost in time. The model's own "
        "value suits it best.",
        "Look", low=1, high=32, step=0.01, scope="section",
    )] = 10.0
    cfg: Annotated[float, SettingInfo(
        "CFG Scale",
        "The strength of classifier-free guidance. Above 1, the negative prompt has an effect and each step "
        "takes twice as long.",
        "Look", low=1, high=32, step=0.01, scope="section",
    )] = 1.0
    cfg_rescale: Annotated[float, SettingInfo(
        "CFG Re-Scale",
        "A higher value counteracts the oversaturated colours of a high `cfg`, at no cost in time.",
        "Look", low=0, high=1, step=0.01, scope="section",
    )] = 0.0
    crf: Annotated[int, SettingInfo(
        "MP4 Compression", "A lower value gives a better picture and a larger file. 0 counts as 1.",
        "Size and output", low=0, high=51,
    )] = 16
    sampler: Annotated[str, SettingInfo(
        "Sampler", "The solver that turns noise into the video.", "Look", choices=SAMPLERS, on_page=False,
        scope="section",
    )] = "unipc"
    model: Annotated[str, SettingInfo(
        "Model", "It has its own steps, guidance and size.", "What to make", unit="name|dir",
    )] = "demo"
    preserved_gb: Annotated[float | None, SettingInfo(
        "GPU Inference Preserved Memory (GB) (larger means slower)",
        "The GPU memory that weights leave free, in GB. Weights that do not fit beside it "
        "are streamed.",
        "Memory", low=0, high=128, step=0.1, unit="GB", otherwise="by the card's size", scope="memory",
    )] = None
    vram_cap_gb: Annotated[float | None, SettingInfo(
        "VRAM Cap (GB)",
        "The most GPU memory that a video may use, in GB. A lower cap streams more weights; "
        "a video that cannot fit is refused at the start.",
        "Memory", low=0.001, high=1024, step=0.1, unit="GB", otherwise="by the card's size", scope="memory",
    )] = None
    weight_dtype: Annotated[str, SettingInfo(
        "Weight Type",
        "The number format of the transformer's weights on the device; another one changes the pixels. In "
        "8 bit they need two thirds of the memory of 16 bit, as norms and embedders keep their precision. "
        "Automatic takes int8 if only that keeps them all on the device.",
        "Memory", choices=WEIGHT_TYPES,
    )] = "default"
    vae_tile: Annotated[int | None, SettingInfo(
        "VAE Tile (Pixels)",
        "The side of the tiles in which frames are encoded and decoded. Smaller tiles need less memory; "
        "another size changes the pixels slightly.",
        "Memory", low=64, high=1024, step=32, multiple=32, unit="pixels", otherwise="what fits", scope="vae",
    )] = None
    vae_precision: Annotated[str, SettingInfo(
        "VAE Precision",
        "The number format of the VAE; another one changes the pixels slightly. fp32 needs twice the memory, "
        "and is always used after an overflow.",
        "Memory", choices=VAE_PRECISIONS, scope="vae",
    )] = "auto"
    vae_chunk: Annotated[int, SettingInfo(
        "VAE Chunk (Latent Frames)",
        "The number of latent frames by which the VAE's temporal windows advance; 3 is the VAE's own. A "
        "lower number needs less memory; another number changes the pixels.",
        "Memory", low=1, high=8, scope="vae",
    )] = 3
    vae_threshold: Annotated[float, SettingInfo(
        "VAE Memory Threshold",
        "The share of the memory beside the weights that the plan may give to the VAE. A lower value may "
        "lead to smaller tiles, which change the pixels slightly.",
        "Memory", low=0.1, high=1, step=0.05, scope="memory",
    )] = 1.0
    vae_cleanup: Annotated[int, SettingInfo(
        "VAE Clean-Up Frequency",
        "The number of VAE tiles after which unused memory is returned to the driver; 0 means never. A lower "
        "number is slower; the pixels stay the same.",
        "Memory", low=0, high=1000, scope="memory",
    )] = 0
    crop: Annotated[float, SettingInfo(
        "Crop Position",
        "The part of the picture that is kept if the video has another shape: 0 keeps the left or upper end, "
        "1 the right or lower end.",
        "What to make", low=0, high=1, step=0.01, scope="input",
    )] = 0.5
    lora: Annotated[str, SettingInfo(
        "LoRA",
        "LoRAs add a style, a motion or a subject to the model. Each line names a safetensors file that was "
        "made for FramePack or HunyuanVideo, as FILE or FILE:WEIGHT.",
        "Look", unit="file[:weight]", is_list=True, normal=normal_text, words=shown, scope="input",
    )] = ""
    # fmt: on

    def __post_init__(self) -> None:
        """Validate every setting, and store it in its own type.

        Raises:
            InputError: If a value cannot be used.
        """
        for name, setting in settings_of(type(self)).items():
            object.__setattr__(self, name, setting.check(getattr(self, name)))
        if not self.image.strip():
            raise no_picture()

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the prompts in use, one per pass of the transformer in a step."""
        return (self.prompt, self.negative) if self.cfg > 1 else (self.prompt,)

    def to_json(self) -> str:
        """Return the settings as a JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return a validated request, given a dict of settings.

        Raises:
            InputError: If a setting is unknown, or a value cannot be used.
        """
        known = sorted(field.name for field in fields(cls))
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise InputError(
                f"{short_repr(unknown[0])} is not a setting; expected one of {', '.join(known)}.",
                "Leave it out.",
            )
        if "image" not in data:
            raise no_picture()
        return cls(**data)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return a validated request, given a text written by `to_json`.

        Raises:
            InputError: If the text is not a JSON object of valid settings.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"The request is not JSON ({error}).", "Write it again.") from error
        if not isinstance(data, dict):
            raise InputError(
                f"The request is {short_repr(data)}; expected a JSON object of settings.", "Write it again."
            )
        return cls.from_dict(cast(dict[str, Any], data))


SETTINGS, START_PICTURE = settings_of(GenerationRequest), "image"
PICTURES = tuple(name for name, setting in SETTINGS.items() if setting.is_picture)


def no_picture() -> PictureError:
    """Return the error for a request without a picture."""
    return PictureError("There is no picture; a video needs one to start from.", "Choose a picture.")


def _bound(value: float) -> str:
    """Return a bound as short text, such as 0.001 or 2^63 - 1."""
    power = int(value + 1).bit_length() - 1
    return f"2^{power} - 1" if power >= 53 else f"{value:g}"

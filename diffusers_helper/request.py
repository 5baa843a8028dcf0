"""Everything a person can set for one video: one frozen, checked object, the same as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.packing import MAX_SECONDS, MIN_SECONDS, MODES, Mode

Sampler = Literal["unipc", "euler"]
SAMPLERS: tuple[Sampler, ...] = ("unipc", "euler")

# Generous for people, small enough that no text field can fill a disk; each model's own limit in tokens
# is checked where its tokenizer is known.
MAX_PROMPT_CHARACTERS = 4000
MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number that a person can set; pages and CLIs take their sliders from here."""

    low: float
    high: float
    step: float
    label: str


RANGES: dict[str, Range] = {
    "seconds": Range(MIN_SECONDS, MAX_SECONDS, 0.1, "Total Video Length (Seconds)"),
    "seed": Range(0, MAX_SEED, 1, "Seed"),
    "steps": Range(1, 100, 1, "Steps"),
    "guidance": Range(1.0, 32.0, 0.01, "Distilled CFG Scale"),
    "cfg": Range(1.0, 32.0, 0.01, "CFG Scale"),
    "cfg_rescale": Range(0.0, 1.0, 0.01, "CFG Re-Scale"),
    "crf": Range(0, 51, 1, "MP4 Compression"),
    "preserved_gb": Range(0.0, 128.0, 0.1, "GPU Inference Preserved Memory (GB)"),
    "vram_cap_gb": Range(0.001, 1024.0, 0.1, "VRAM Cap (GB)"),
    "vae_tile": Range(64, 1024, 32, "VAE Tile (Pixels)"),
}
MIN_RESOLUTION, MAX_RESOLUTION = 64, 1280
_WHOLE = {"seed", "steps", "crf", "vae_tile"}
_MAY_BE_NONE = {"preserved_gb", "vram_cap_gb", "vae_tile"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One video to make.

    Attributes:
        image: path of the start picture.
        prompt: what should happen.
        negative: what should not; used only where `cfg` is above 1.
        seconds: wished length; the real one follows from whole sections (`packing.plan_sections`).
        seed: source of all randomness; the same request gives the same bytes.
        steps: denoising steps per section.
        mode: order of the sections, "inverted" or "forward".
        resolution: side in pixels that the picture shapes are scaled to; None for the model's own.
        guidance: distilled guidance, embedded in the model.
        cfg: real classifier-free guidance; 1 runs the model once a step, more runs it twice.
        cfg_rescale: 0 to 1, pulls the guided prediction's spread back to the unguided one's.
        crf: x264's constant rate factor, lower is better.
        sampler: "unipc" as FramePack, or "euler" as diffusers.
        model: name in the model registry, or a folder (command line only).
        preserved_gb: GPU memory (1024^3 bytes) that weights must leave free; None for the machine's default.
        vram_cap_gb: most GPU memory (1024^3 bytes) that the job may take; None for the machine's default.
        vae_tile: side in pixels of the pieces that the VAE works in, a multiple of 32; None for the largest
            that fits, up to the machine's default. Other pieces give slightly other pixels.
    """

    image: str
    prompt: str = ""
    negative: str = ""
    seconds: float = 5.0
    seed: int = 31337
    steps: int = 25
    mode: Mode = "inverted"
    resolution: int | None = None
    guidance: float = 10.0
    cfg: float = 1.0
    cfg_rescale: float = 0.0
    crf: int = 16
    sampler: Sampler = "unipc"
    model: str = "demo"
    preserved_gb: float | None = None
    vram_cap_gb: float | None = None
    vae_tile: int | None = None

    def __post_init__(self) -> None:
        _check_text("image", self.image)
        if not self.image.strip():
            raise _no_picture()
        for name in ("prompt", "negative"):
            _check_text(name, getattr(self, name))
        _check_choice("mode", self.mode, MODES)
        _check_choice("sampler", self.sampler, SAMPLERS)
        _check_text("model", self.model)
        for name, bounds in RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                object.__setattr__(self, name, _number(name, value, bounds.low, bounds.high))
        if self.vae_tile is not None and self.vae_tile % RANGES["vae_tile"].step:
            raise InputError(
                f"vae_tile is {self.vae_tile}; expected a multiple of {RANGES['vae_tile'].step:g}.",
                "Set vae_tile to a multiple of it, or leave it out.",
            )
        if self.resolution is not None:
            value = _number("resolution", self.resolution, MIN_RESOLUTION, MAX_RESOLUTION)
            object.__setattr__(self, "resolution", value)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GenerationRequest:
        """A checked request from plain data.

        Raises:
            InputError: for an unknown setting, or a value that cannot be used.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InputError(
                f"{short_repr(unknown[0])} is not a setting; expected one of {', '.join(sorted(known))}.",
                "Leave it out.",
            )
        if "image" not in data:
            raise _no_picture()
        return cls(**data)

    @classmethod
    def from_json(cls, text: str) -> GenerationRequest:
        """A checked request from what `to_json` wrote.

        Raises:
            InputError: for anything else.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise InputError(f"The request is not JSON ({error}).", "Write it anew.") from error
        if not isinstance(data, dict):
            raise InputError(
                f"The request is {short_repr(data)}; expected a JSON object of settings.", "Write it anew."
            )
        return cls.from_dict(cast(dict[str, Any], data))


def _no_picture() -> InputError:
    return InputError("There is no picture; a video needs one to start from.", "Choose a picture.")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name} is {short_repr(value)}; expected text.", f"Give {name} as text.")
    if len(value) > MAX_PROMPT_CHARACTERS:
        raise InputError(
            f"{name} has {len(value)} characters; expected at most {MAX_PROMPT_CHARACTERS}.",
            "Shorten it.",
        )
    if "\0" in value:
        raise InputError(f"{name} contains a NUL character; expected plain text.", "Type it anew.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not valid Unicode (character {error.start + 1}); expected plain text.",
            "Type it anew, or rename the file if it is a file's name.",
        ) from error


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(
            f"{name} is {short_repr(value)}; expected {' or '.join(choices)}.",
            f"Choose one of them as {name}.",
        )


def _number(name: str, value: object, low: float, high: float) -> float | int:
    whole = name in _WHOLE or name == "resolution"
    kind = "a whole number" if whole else "a number"
    expected = (
        f"expected {kind} from {low:g} to {high:g}"
        if name != "seed"
        else f"expected {kind} from 0 to 2^63 - 1"
    )
    refusal = InputError(
        f"{name} is {short_repr(value)}; {expected}.", f"Set {name} to a value in that range."
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refusal
    # NaN lies in no range. Compared before it is converted: a huge whole number fits no float.
    if not low <= value <= high or (whole and value != int(value)):
        raise refusal
    return int(value) if whole else float(value)

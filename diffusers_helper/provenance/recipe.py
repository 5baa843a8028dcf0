"""The recipe of a video, which is all that determines its pixels, as JSON, and the start picture.

The same recipe gives the same bytes on the same machine with the same software. The limits of memory and the
job's name, paths and times are not part of it.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from diffusers_helper import __version__
from diffusers_helper.errors import InputError, first_line, short_repr
from diffusers_helper.files import file_sha256, write_atomic
from diffusers_helper.machine.packages import kernels_version
from diffusers_helper.picture_names import paths_in, timed_picture_name, with_pictures
from diffusers_helper.provenance.job_folder import read_record
from diffusers_helper.provenance.lineage import Lineage, Span, merged_spans, recorded_settings
from diffusers_helper.provenance.metadata import MAX_TEXT, read_embedded
from diffusers_helper.request import (
    AFTER,
    BEFORE,
    PICTURES,
    SETTINGS,
    START_PICTURE,
    TIMED_PICTURES,
    GenerationRequest,
)
from diffusers_helper.setting import text_of
from diffusers_helper.timed_pictures import TimedPicture
from diffusers_helper.untrusted.confined import confined
from diffusers_helper.untrusted.limited_json import plain_json

VERSION = 1
_FIELDS = {"recipe", "settings", "earlier", "vae", "made_with"}
# A recipe has this setting only if it is not empty. It names files without folders, with checksums.
_LORA = "lora"
# For a continued video, a recipe has the video's checksum and the crop.
_VIDEO = "video"
_MAX_ENTRIES = 1000  # spans or uses of the VAE, which are as many as sections at most


@dataclass(frozen=True, slots=True)
class VaeUse:
    """The settings with which the VAE has worked from one section on; 0 is the start picture.

    `tile` is the side in pixels, or the smallest side that covers the picture with one tile.
    """

    section: int
    tile: int
    precision: str
    chunk: int

    @property
    def settings(self) -> dict[str, int | str]:
        prefixed = {f"vae_{name}": value for name, value in asdict(self).items()}
        return {name: value for name, value in prefixed.items() if name in SETTINGS}


def read_uses(file: Path) -> tuple[VaeUse, ...]:
    return read_record(file, lambda content: tuple(VaeUse(**item) for item in plain_json(content)), ())


def record_use(file: Path, use: VaeUse) -> None:
    recorded_uses = read_uses(file)
    earlier_uses = tuple(earlier for earlier in recorded_uses if earlier.section < use.section)
    is_new = not earlier_uses or replace(earlier_uses[-1], section=use.section) != use
    uses = (*earlier_uses, use) if is_new else earlier_uses
    if uses != recorded_uses:
        write_uses(file, uses)


def write_uses(file: Path, uses: tuple[VaeUse, ...]) -> None:
    write_atomic(file, json.dumps([asdict(use) for use in uses]).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Recipe:
    settings: Mapping[str, Any]
    spans: tuple[Span, ...] = ()
    vae: tuple[VaeUse, ...] = ()
    made_with: Mapping[str, str] | None = None
    pictures: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    notices: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        request: GenerationRequest,
        spans: Sequence[Span],
        vae: Sequence[VaeUse],
        *,
        model: str | None,
        side: int,
        made_with: Mapping[str, str],
        pictures: Mapping[str, bytes],
        lora: str = "",
        video: str = "",
    ) -> Self:
        """`model` is None for a folder, whose path is private. `lora` has checksums in place of paths."""
        settings = recorded_settings(request, "section", "video")
        if lora:
            settings[_LORA] = lora
        if video:
            names = ("crop", "crop_y", "zoom", "picture_shape", "extend")
            values = {name: getattr(request, name) for name in names}
            settings |= {name: value for name, value in values.items() if value != SETTINGS[name].default}
            settings[_VIDEO] = video
        if request.pictures:
            numbered = enumerate(request.timed_pictures, 1)
            settings[TIMED_PICTURES] = text_of(
                TimedPicture(picture.time, timed_picture_name(number)) for number, picture in numbered
            )
        if request.is_from_words:
            settings[START_PICTURE] = ""  # other recipes have lost the picture if they lack it
        settings["resolution"] = side
        if model is None:
            del settings["model"]
        return cls(settings, merged_spans(spans, request), tuple(vae), made_with, pictures)

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.spans)

    def notices_on(self, card: str) -> tuple[str, ...]:
        made_with = self.made_with or {}
        notices = list(self.notices)
        device, version = made_with.get("device", ""), made_with.get("longtake", __version__)
        if device and device.partition(" ")[0] != card:
            notices.append(f"The video was made on {device}; made again on {card}, its bytes will differ.")
        kernels = made_with.get("kernels", "")
        if kernels not in ("", kernels_version(kernels.partition(" ")[0])):
            notices.append(f"The video was made with {kernels}, which is not here; its bytes will differ.")
        if version != __version__:  # which may have another demo model, too
            notices.append(
                f"The video was made with Longtake {version}; made again with {__version__}, it may differ."
            )
        return tuple(notices)

    def to_json(self) -> str:
        data = {
            "recipe": VERSION,
            "settings": dict(self.settings),
            "earlier": [span.to_dict() for span in self.spans],
            "vae": [asdict(use) for use in self.vae],
            "made_with": dict(self.made_with or {}),
        }
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    def request(self, pictures: Mapping[str, str], **changes: Any) -> GenerationRequest:
        """Make the request that makes the video again; `changes` apply to the last span of a branch."""
        if "model" not in {**self.settings, **changes}:
            raise InputError(
                "The recipe is for a model in a folder, but does not say where it is; expected `model`.",
                "Set `model` to the folder with the model's parts.",
                setting="model",
            )
        if missing := next((name for name in paths_in(self.settings) if name not in pictures), None):
            raise InputError(
                f"The recipe lacks the picture {short_repr(missing)}; expected all pictures that it names.",
                f"Set `{TIMED_PICTURES}` to files.",
                setting=TIMED_PICTURES,
            )
        return GenerationRequest.from_dict({**with_pictures(self.settings, pictures), **changes})


@dataclass(frozen=True, slots=True)
class StoredRecipe:
    text: str
    pictures: Mapping[str, bytes]

    def to_json(self) -> str:
        return self.text


def finished_recipe(request: GenerationRequest, steps: str, paths: Sequence[Path]) -> StoredRecipe:
    """Take the first source's recipe with further steps, or its checksum if Longtake did not make it."""
    checksum, *joined = map(file_sha256, paths)
    others = {"join": text_of(joined), "sound": request.sound and file_sha256(Path(request.sound))}
    with paths[0].open("rb") as file:
        try:
            text, pictures = read_embedded(file) or (None, {})
            data: Any = plain_json(text or b"")
            settings: dict[str, Any] = data["settings"]
            settings["then"] = text_of(filter(None, (settings.get("then"), steps)))
        except (ValueError, TypeError, KeyError):
            settings, pictures = {"model": request.model, "finish": steps, _VIDEO: checksum}, {}
            data = {"recipe": VERSION, "settings": settings}
    settings |= {name: value for name, value in others.items() if value}
    return StoredRecipe(json.dumps(data, ensure_ascii=False, allow_nan=False), pictures)


@confined
def read_recipe(path: Path) -> Recipe:
    try:
        with path.open("rb") as file:
            if (embedded := read_embedded(file)) is None:
                file.seek(0)
                embedded = file.read(MAX_TEXT + 1), dict[str, bytes]()
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read ({error.strerror}); expected a file with a recipe.",
            "Check the path.",
        ) from error
    text, pictures = embedded
    if text is None:
        raise _no_recipe(path.name, "it was not made by Longtake, or another program has rewritten it")
    return replace(_parsed(text, path.name), pictures=pictures)


def _parsed(text: bytes, name: str) -> Recipe:
    if len(text) > MAX_TEXT:
        raise _no_recipe(name, f"it has more than {MAX_TEXT // 2**20} MiB of text")
    try:
        data: Any = plain_json(text)
    except ValueError as error:
        raise _no_recipe(name, f"it is not JSON: {str(error)[:100]}") from error
    data = cast(dict[str, Any], data) if isinstance(data, dict) else {}
    values: Any = data.get("settings") if "recipe" in data else data
    if not isinstance(values, dict) or not cast(dict[str, Any], values).keys() & SETTINGS.keys():
        raise _no_recipe(name, "it has none of the settings of a video")
    unknown_fields = data.keys() - _FIELDS if "recipe" in data else set[str]()
    settings, notices = _settings(cast(dict[str, Any], values), unknown_fields)
    if "recipe" not in data:  # a job's request or a preset
        return Recipe(settings, notices=tuple(notices))
    if data["recipe"] != VERSION:
        notices.append(
            f"The recipe has version {short_repr(data['recipe'])}, and this program knows version {VERSION}; "
            "the video may differ from the original."
        )
    try:
        entries: Any = [data.get(name) or () for name in ("vae", "earlier", "made_with")]
        uses = tuple(VaeUse(**item) for item in entries[0][:_MAX_ENTRIES])
        spans = tuple(map(Span.from_dict, entries[1][:_MAX_ENTRIES]))
        made_with = {str(key): str(value) for key, value in dict(entries[2]).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        uses, spans, made_with = (), (), dict[str, str]()
        notices.append(
            f"The recipe has another form than this version knows ({first_line(error)}), so all sections are "
            "made with the last settings."
        )
    for use in uses[-1:]:
        last_settings, last_notices = _settings(use.settings)
        settings |= last_settings
        notices += last_notices
    if len(uses) > 1:
        notices.append(
            "The VAE's tiles or precision changed within this video, because memory ran out or values "
            "overflowed. A video made from this recipe uses the last ones throughout and differs slightly."
        )
    if others := [name for name in ("join", "sound") if settings.pop(name, "")]:
        notices.append(f"The video had other files for {' and '.join(others)}, which it does not contain.")
    if video_checksum := settings.pop(_VIDEO, ""):
        extend_hint = f", and `extend` as {BEFORE}," if settings.pop("extend", AFTER) == BEFORE else ""
        notices.append(
            f"The video continues another one, which the file does not contain (its checksum begins with "
            f"{video_checksum[:8]}); give that one as `{_VIDEO}`{extend_hint} to continue it again."
        )
    return Recipe(settings, spans, uses, made_with, notices=tuple(notices))


def _settings(data: Mapping[str, Any], unknown: Set[str] = frozenset()) -> tuple[dict[str, Any], list[str]]:
    settings = dict[str, Any]()
    notices = list[str]()
    for name, value in data.items():
        if name in SETTINGS and (name not in PICTURES or value == ""):
            try:
                settings[name] = SETTINGS[name].check(value)
            except InputError as error:
                notices.append(f"{error.message} The default is used instead.")
    if unknown := (data.keys() - SETTINGS.keys()) | unknown:
        names = short_repr(", ".join(sorted(unknown)))
        notices.append(f"The file has settings that this version does not know: {names}. They are left out.")
    return settings, notices


def _no_recipe(name: str, reason: str) -> InputError:
    return InputError(
        f"{name} holds no settings of Longtake: {reason}.",
        "Choose a video, a picture or settings that Longtake wrote.",
    )

"""The pictures of a job, by the names of their settings: start, end and timed ones, and where each counts."""

import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
from PIL import Image

from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.conditions.picture_file import fit_picture, load_picture, plain_png, read_as_png
from diffusers_helper.errors import InputError, first_line, short_repr
from diffusers_helper.families.family import Family
from diffusers_helper.files import expanded_path, read_file, replacing, sha256_of, write_atomic
from diffusers_helper.library_errors import is_storage_trouble
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.picture_names import is_picture_name, paths_in, timed_picture_name, with_pictures
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import (
    END_PICTURE,
    PICTURES,
    SETTINGS,
    START_PICTURE,
    TIMED_PICTURES,
    GenerationRequest,
)
from diffusers_helper.setting import lines_of, text_of
from diffusers_helper.untrusted.limited_json import plain_json

Contents = Mapping[str, bytes]
"""The content of each picture as a plain PNG file, by the name of its setting."""
NO_PICTURES: Contents = MappingProxyType({})
Shares = tuple[tuple[str, float], ...]
"""Texts or pictures that condition a section, each with its share. The shares sum to 1."""
DAMAGED = "Put the file back as it was, or remove the job."
_MAX_REQUEST_BYTES = 2**20
_REFERENCE_SHARE = 0.3  # of all reference pictures for a single picture, as in kijai's wrapper


def picture_paths(request: GenerationRequest) -> dict[str, str]:
    return paths_in({name: getattr(request, name) for name in (*PICTURES, TIMED_PICTURES)})


def with_paths(request: GenerationRequest, paths: Mapping[str, str]) -> GenerationRequest:
    return replace(request, **with_pictures({TIMED_PICTURES: request.pictures}, paths))


def read_pictures(request: GenerationRequest, contents: Contents) -> dict[str, bytes]:
    return {
        name: contents[name] if name in contents else _read_named(request, name, path)
        for name, path in picture_paths(request).items()
    }


def _read_named(request: GenerationRequest, name: str, path: str) -> bytes:
    file = expanded_path(path, name)
    return read_footage(file).last_frame if path == request.video else read_as_png(file)


def load_named(request: GenerationRequest, name: str, path: str) -> Image.Image:
    file = expanded_path(path, name)
    return load_picture(read_footage(file).last_frame if path == request.video else file)


def stored_pictures(folder: JobFolder, names: Iterable[str]) -> dict[str, bytes]:
    return {name: read_file(folder.picture(name)) for name in names}


def store_request(
    request: GenerationRequest, pictures: Contents, folder: JobFolder, *, final_folder: JobFolder
) -> None:
    for file in (*map(folder.picture, PICTURES), *folder.path.glob(f"{TIMED_PICTURES}_*.png")):
        if file not in [folder.picture(name) for name in pictures]:
            file.unlink(missing_ok=True)
    for name in pictures:
        file = folder.picture(name)
        if not file.exists() or read_file(file) != pictures[name]:
            write_atomic(file, pictures[name])
    store_files(asdict(request), folder)
    request = replace(request, **_with_folder_paths(asdict(request), final_folder))
    write_atomic(folder.request, request.to_json().encode() + b"\n")


def request_content(folder: JobFolder) -> bytes:
    """Read the file with a job's request; OSError if the disk is out of reach, else InputError."""
    try:
        return read_file(folder.request, _MAX_REQUEST_BYTES)
    except OSError as error:
        if is_storage_trouble(error) or not folder.path.is_dir():
            raise
        raise _damaged(folder, error.strerror or first_line(error)) from error


def stored_request(content: bytes, folder: JobFolder) -> GenerationRequest:
    """Parse the file with a job's request, with paths where the folder is now."""
    try:
        settings = plain_json(content)
        if not isinstance(settings, dict):
            raise ValueError(f"it is {short_repr(settings)}")
        return GenerationRequest.from_dict(_with_folder_paths(cast(dict[str, Any], settings), folder))
    except ValueError as error:
        reason = error.message if isinstance(error, InputError) else first_line(error)
        raise _damaged(folder, reason) from error


def _damaged(folder: JobFolder, reason: str) -> InputError:
    return InputError(f"{folder.request.name} cannot be used: {reason.rstrip('.')}.", DAMAGED)


def _with_folder_paths(settings: Mapping[str, Any], folder: JobFolder) -> dict[str, Any]:
    paths = {name: str(folder.picture(name)) for name in paths_in({START_PICTURE: "its", **settings})}
    files = {name: text_of(copies) for name, copies in file_copies(settings, folder).items() if copies}
    return with_pictures(settings, paths | files)


def file_copies(settings: Mapping[str, Any], folder: JobFolder) -> dict[str, dict[Path, str]]:
    joined = enumerate(lines_of(settings.get("join") or ""), 1)
    single = {"video": folder.original, "sound": folder.sound}
    copies = {name: {copy: settings[name]} for name, copy in single.items() if settings.get(name)}
    return copies | {"join": {folder.joined(number): path for number, path in joined}}


def store_files(settings: Mapping[str, Any], folder: JobFolder) -> None:
    named = file_copies(settings, folder)
    copies = {
        copy: expanded_path(path, name) for name, files in named.items() for copy, path in files.items()
    }
    with ExitStack() as on_end:  # all are copied before a copy that is the source of another one is replaced
        for copy, source in copies.items():
            if not (copy.exists() and source.samefile(copy)):
                shutil.copyfile(source, on_end.enter_context(replacing(copy)))
    for file in (folder.original, folder.sound, *folder.path.glob(f"{folder.original.name}_*")):
        if file not in copies:
            file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class JobPictures:
    """The pictures of one job by the names of their settings; `fitted` have the video's size, `shape`."""

    sources: Mapping[str, Image.Image]
    fitted: Mapping[str, Image.Image]
    shape: tuple[int, int]

    @classmethod
    def of(
        cls, sources: Mapping[str, Image.Image], shape: tuple[int, int], request: GenerationRequest
    ) -> Self:
        numbered = enumerate(request.timed_pictures, 1)
        crops: dict[str, tuple[float, ...]] = {
            **{name: (getattr(request, SETTINGS[name].crop),) for name in PICTURES},
            **{timed_picture_name(number): (picture.crop,) for number, picture in numbered},
            START_PICTURE: request.start_crop,
        }
        fitted = {name: fit_picture(picture, *shape, *crops[name]) for name, picture in sources.items()}
        return cls(sources, fitted, shape)

    @property
    def start(self) -> Image.Image | None:
        return self.fitted.get(START_PICTURE)

    def first_equal(self, name: str) -> str:
        return next(other for other, picture in self.fitted.items() if picture == self.fitted[name])

    @property
    def contents(self) -> dict[str, bytes]:
        return {name: plain_png(picture) for name, picture in self.fitted.items()}

    @property
    def origin(self) -> dict[str, str]:
        return {
            _captured_name(name): sha256_of((f"{image.mode} {image.size} ".encode(), image.tobytes()))
            for name, image in self.sources.items()
        }

    def arrays(self) -> dict[str, Any]:
        """Convert the source pictures to (height, width, 3), by the names that captures have for them."""
        return {_captured_name(name): np.array(picture) for name, picture in self.sources.items()}


def picture_warning(mode: str, info: ModelInfo) -> str:
    if "end_image" in info.family.unsupported:
        return f"{info.title} takes no pictures besides the first; remove them, or choose another model."
    if mode == "inverted":
        return ""
    has_inverted = "inverted" in info.modes
    trained = "the order End first" if has_inverted else "framepack-i2v"
    return (
        "Forward order was not trained for an end picture or pictures at times, which only draw the video "
        "towards them; "
        f"{trained} was."
    )


def pictures_of(number: int, request: GenerationRequest, family: Family) -> Shares:
    """Shares change linearly from each picture to the next one in the video, by the middle of the section."""
    if request.one_frame and request.timed_pictures:
        share = _REFERENCE_SHARE / len(request.timed_pictures)
        names = (timed_picture_name(n) for n in range(1, len(request.timed_pictures) + 1))
        return (START_PICTURE, 1 - _REFERENCE_SHARE), *((name, share) for name in names)
    section = family.sections(request)[number - 1]
    if section.is_closing:  # it leads to the start
        return ((START_PICTURE, 1.0),)
    count = len(family.plain_sections(request))
    pictures = {0: START_PICTURE, **pictures_by_index(request, family, count)}
    if request.end_image:
        pictures[count] = END_PICTURE
    start = max(index for index in pictures if index <= section.video_index)
    end = min((index for index in pictures if index > section.video_index), default=None)
    if end is None:
        return ((pictures[start], 1.0),)
    middle = section.video_index + 0.5
    if request.vision_change == "constant":
        middle = (start + end) / 2
    strength = request.end_strength if pictures[end] == END_PICTURE else 1.0
    share = strength * (middle - start) / (end - start)
    return (pictures[start], 1 - share), (pictures[end], share)


def start_picture_of(number: int, request: GenerationRequest, family: Family) -> str:
    sections = family.sections(request)
    if sections[number - 1].is_closing:
        return START_PICTURE
    pictures = {0: START_PICTURE, **pictures_by_index(request, family, len(sections))}
    return pictures[max(index for index in pictures if index <= sections[number - 1].video_index)]


def pictures_by_index(request: GenerationRequest, family: Family, num_sections: int) -> dict[int, str]:
    section_seconds = family.plain_sections(request).section_seconds
    pictures = {
        picture.section_index(section_seconds): timed_picture_name(n)
        for n, picture in enumerate(request.timed_pictures, 1)
    }
    return {index: name for index, name in pictures.items() if index < num_sections}


def load_pictures(request: GenerationRequest) -> dict[str, Image.Image]:
    return {name: load_named(request, name, path) for name, path in picture_paths(request).items()}


def write_captured(arrays: Mapping[str, Any], folder: JobFolder) -> dict[str, str]:
    names = (START_PICTURE if name == _captured_name(START_PICTURE) else name for name in arrays)
    files = {name: folder.picture(name) for name in names if is_picture_name(name)}
    for name, file in files.items():
        Image.fromarray(np.asarray(arrays[_captured_name(name)])).save(file)
    return {name: str(file) for name, file in files.items()}


def _captured_name(name: str) -> str:
    return "picture" if name == START_PICTURE else name

"""The pictures of a job, by the names of their settings, in the forms that they take on their way.

A request has the path of a picture, a queue and a recipe have its content, a job's folder has a file, and a
job has its pixels, in its own size and in that of the video. What a picture means is the family's concern.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from PIL import Image

from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.conditions.picture import fit_picture, load_picture, plain_png
from diffusers_helper.errors import InputError, first_line, short_repr
from diffusers_helper.files import given_path, read_file, replacing, sha256_of, write_atomic
from diffusers_helper.foreign_errors import is_storage_trouble
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import (
    PICTURES,
    PLACED,
    SETTINGS,
    START_PICTURE,
    GenerationRequest,
    is_picture_name,
    paths_in,
    placed_name,
    with_pictures,
)
from diffusers_helper.strangers.limited_json import plain_json

Contents = Mapping[str, bytes]
"""The content of each picture as a plain PNG file, by the name of its setting."""
NO_PICTURES: Contents = MappingProxyType({})
DAMAGED = "Put the file back as it was, or remove the job."
_MOST_REQUEST_BYTES = 2**20


def named_pictures(request: GenerationRequest) -> dict[str, str]:
    """Return the paths of the pictures that a request names, by the names of the pictures."""
    return paths_in({name: getattr(request, name) for name in (*PICTURES, PLACED)})


def with_paths(request: GenerationRequest, paths: Mapping[str, str]) -> GenerationRequest:
    """Return a request in which the pictures of these names have these paths."""
    return replace(request, **with_pictures({PLACED: request.pictures}, paths))


def read_pictures(request: GenerationRequest, known: Contents) -> dict[str, bytes]:
    """Return the contents of the pictures that a request names, reading those that are not known yet.

    Raises:
        PictureError: If one cannot be used.
    """
    return {
        name: known[name] if name in known else plain_png(load_named(request, name, path))
        for name, path in named_pictures(request).items()
    }


def load_named(request: GenerationRequest, name: str, path: str) -> Image.Image:
    """Return a picture that a request names. The video to continue stands for its last frame."""
    file = given_path(path, name)
    return load_picture(read_footage(file).last if path == request.video else file)


def kept_pictures(folder: JobFolder, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of pictures in a job's folder."""
    return {name: read_file(folder.picture(name)) for name in names}


def keep_request(request: GenerationRequest, pictures: Contents, folder: JobFolder, *, at: JobFolder) -> None:
    """Write a request and its pictures into a job's folder, and remove pictures that it does not name.

    Args:
        at: Where the folder is once it is complete.
    """
    for file in (*map(folder.picture, PICTURES), *folder.path.glob(f"{PLACED}_*.png")):
        if file not in [folder.picture(name) for name in pictures]:
            file.unlink(missing_ok=True)
    for name in pictures:
        file = folder.picture(name)
        if not file.exists() or read_file(file) != pictures[name]:
            write_atomic(file, pictures[name])
    keep_original(request, folder)
    own = replace(request, **_with_own_paths(asdict(request), at))
    write_atomic(folder.request, own.to_json().encode() + b"\n")


def request_content(folder: JobFolder) -> bytes:
    """Return the content of the file with a job's request.

    Raises:
        InputError: If it cannot be read.
        OSError: If the folder, or the disk that it is on, is out of reach.
    """
    try:
        return read_file(folder.request, _MOST_REQUEST_BYTES)
    except OSError as error:
        if is_storage_trouble(error) or not folder.path.is_dir():
            raise
        raise _damaged(folder, error.strerror or first_line(error)) from error


def kept_request(content: bytes, folder: JobFolder) -> GenerationRequest:
    """Return the request that a file in a job's folder holds, with paths where the folder is now.

    Raises:
        InputError: If it cannot be used.
    """
    try:
        data = plain_json(content)
        if not isinstance(data, dict):
            raise ValueError(f"it is {short_repr(data)}")
        return GenerationRequest.from_dict(_with_own_paths(cast(dict[str, Any], data), folder))
    except ValueError as error:
        fault = error.message if isinstance(error, InputError) else first_line(error)
        raise _damaged(folder, fault) from error


def _damaged(folder: JobFolder, fault: str) -> InputError:
    return InputError(f"{folder.request.name} cannot be used: {fault.rstrip('.')}.", DAMAGED)


def _with_own_paths(settings: Mapping[str, Any], folder: JobFolder) -> dict[str, Any]:
    """Return settings whose pictures and video are those in a job's folder."""
    own = {name: str(folder.picture(name)) for name in paths_in({START_PICTURE: "its", **settings})}
    return with_pictures(settings, own | ({"video": str(folder.original)} if settings.get("video") else {}))


def keep_original(request: GenerationRequest, folder: JobFolder) -> None:
    """Copy the video that a request continues, if any, into a job's folder."""
    if not request.video:
        folder.original.unlink(missing_ok=True)
        return
    given = given_path(request.video, "video")
    if not (folder.original.exists() and given.samefile(folder.original)):
        with replacing(folder.original) as temporary:
            shutil.copyfile(given, temporary)


@dataclass(frozen=True, slots=True)
class JobPictures:
    """The pictures of one job, each upright and opaque.

    Attributes:
        fitted: The same in the size of the video.
        shape: The height and width of the video in pixels.
    """

    given: Mapping[str, Image.Image]
    fitted: Mapping[str, Image.Image]
    shape: tuple[int, int]

    @classmethod
    def of(
        cls, given: Mapping[str, Image.Image], shape: tuple[int, int], request: GenerationRequest
    ) -> JobPictures:
        """Return given pictures together with the part of each that a video of this height and width has."""
        crops = {name: getattr(request, SETTINGS[name].crop) for name in PICTURES}
        crops |= {placed_name(n): one.crop for n, one in enumerate(request.placed, 1)}
        fitted = {name: fit_picture(one, *shape, crops[name]) for name, one in given.items()}
        return cls(given, fitted, shape)

    @property
    def start(self) -> Image.Image | None:
        """Return the start picture in the size of the video; None if it starts from words alone."""
        return self.fitted.get(START_PICTURE)

    def same(self, name: str) -> str:
        """Return the name of the first picture that is the same as one of this name in the video's size."""
        return next(one for one, picture in self.fitted.items() if picture == self.fitted[name])

    @property
    def contents(self) -> dict[str, bytes]:
        """Return the pictures in the size of the video, as recipes carry them."""
        return {name: plain_png(one) for name, one in self.fitted.items()}

    @property
    def origin(self) -> dict[str, str]:
        """Return the checksums of the pixels that were given, by the names that origins have for them."""
        return {
            _recorded(name): sha256_of((f"{one.mode} {one.size} ".encode(), one.tobytes()))
            for name, one in self.given.items()
        }

    def arrays(self) -> dict[str, Any]:
        """Return the pixels that were given, (height, width, 3), by the names that captures have for them."""
        return {_recorded(name): np.array(one) for name, one in self.given.items()}


def order_words(mode: str, info: ModelInfo) -> str:
    """Return a sentence on pictures besides the first that a model or an order was not made for, or ""."""
    if "end_image" in info.family.lacks:
        return f"{info.title} takes no pictures besides the first; remove them, or choose another model."
    if mode == "inverted":
        return ""
    trained = "inverted order, which makes the end first," if "inverted" in info.modes else "framepack-i2v"
    return (
        "Forward order was not trained for an end picture or pictures at times, which only draw the video "
        "towards them; "
        f"{trained} was."
    )


def load_pictures(request: GenerationRequest) -> dict[str, Image.Image]:
    """Return the pictures that a request names, as `load_picture` reads them."""
    return {name: load_named(request, name, path) for name, path in named_pictures(request).items()}


def write_captured(arrays: Mapping[str, Any], folder: JobFolder) -> dict[str, str]:
    """Write captured pictures into a folder, and return their paths by setting."""
    names = map(_named, arrays)
    found = {name: folder.picture(name) for name in names if is_picture_name(name)}
    for name, file in found.items():
        Image.fromarray(np.asarray(arrays[_recorded(name)])).save(file)
    return {name: str(file) for name, file in found.items()}


def _recorded(name: str) -> str:
    return "picture" if name == START_PICTURE else name


def _named(recorded: str) -> str:
    return START_PICTURE if recorded == "picture" else recorded

"""Pictures that were handed in: how large they are, and what of them becomes the video."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from gradio.utils import get_upload_folder
from PIL import Image

from diffusers_helper.buckets import nearest_bucket
from diffusers_helper.errors import InputError
from diffusers_helper.picture import load_picture

_PICTURES_KNOWN = 32


@dataclass(frozen=True, slots=True)
class Size:
    """Upright size of a picture, as the file has it and as it is used, which differs above 16 megapixels."""

    width: int
    height: int
    used_width: int
    used_height: int


@dataclass(frozen=True, slots=True)
class Crop:
    """The part of a picture that becomes the video.

    Attributes:
        place: left, top, width and height as shares of the picture.
        pixels: width and height of the video.
    """

    place: tuple[float, float, float, float]
    pixels: tuple[int, int]


def crop_of(size: Size, side: int, multiple: int) -> Crop:
    """What `picture.fit_picture` leaves of a picture for the bucket nearest to its shape."""
    height, width = nearest_bucket(size.used_height, size.used_width, side, multiple)
    wanted, found = width / height, size.used_width / size.used_height
    across, down = min(1.0, wanted / found), min(1.0, found / wanted)
    return Crop(((1 - across) / 2, (1 - down) / 2, across, down), (width, height))


class Pictures:
    """Judges uploaded pictures by the rules of a job, each one once. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Size | InputError] = OrderedDict()

    def judge(self, path: str) -> Size | InputError:
        """Its size, or why it cannot be used. An upload never changes."""
        with self._lock:
            if path in self._known:
                self._known.move_to_end(path)
                return self._known[path]
        try:
            found: Size | InputError = _size(Path(path))
        except InputError as error:
            found = error
        with self._lock:
            self._known[path] = found
            while len(self._known) > _PICTURES_KNOWN:
                self._known.popitem(last=False)
        return found


def _size(path: Path) -> Size:
    used = load_picture(path)
    with Image.open(path) as file:
        width, height = file.size
    if (width > height) != (used.width > used.height):  # the file says that the camera was held upright
        width, height = height, width
    return Size(width, height, used.width, used.height)


def picture_path(picture: object) -> str:
    """Where the picture of an upload lies, from gradio's description of it; empty for none.

    Gradio checks descriptions that call themselves its own, and passes others on as they came.

    Raises:
        InputError: for anything else than an upload, whether there is such a file or not.
    """
    if picture is None:
        return ""
    path = picture.get("path") if isinstance(picture, dict) else None
    if isinstance(path, str) and "\0" not in path and _is_uploaded(Path(path)):
        return path
    raise InputError(
        "image is not an upload; expected a picture sent along.", "Pass gradio_client.handle_file(path)."
    )


def _is_uploaded(path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(Path(get_upload_folder()).resolve())
    except OSError:  # a name too long, a ring of links
        return False

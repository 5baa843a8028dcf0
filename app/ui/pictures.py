"""The uploaded pictures: their sizes, and the parts of them that become the video."""

import filecmp
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from app.reading.pictures import Size, read_picture
from app.reading.process import Limits, ReadingProcess
from diffusers_helper.conditions.footage import Footage
from diffusers_helper.conditions.pictures import Contents, picture_paths
from diffusers_helper.errors import InputError, PictureError, short_repr
from diffusers_helper.files import replacing, sha256_of, write_atomic
from diffusers_helper.request import PICTURES, START_PICTURE, TIMED_PICTURES, GenerationRequest
from diffusers_helper.setting import text_of
from diffusers_helper.timed_pictures import timed_pictures_of

_LIMITS = Limits(memory=2 * 2**30, seconds=20, wall_seconds=120.0)
_PICTURE_NAME = "start-picture.png"
_UPLOADS = "uploads/"  # begins the names by which the page and programs know uploads
_MOST_KEPT = 6  # decoded pictures, which have up to 16 megapixels


class Upload(BaseModel):
    """An uploaded file: what the route for uploads returned as its path, or a name that an answer had."""

    path: str


def crop_of(
    size: Size, height: int, width: int, x: float, y: float, zoom: float = 1
) -> tuple[float, float, float, float]:
    """Find what `fit_picture` crops for a video: left, top, width and height, as shares of the picture's."""
    video_ratio, picture_ratio = width / height, size.used_width / size.used_height
    width_share = min(1.0, min(1.0, video_ratio / picture_ratio) / zoom)
    height_share = min(1.0, min(1.0, picture_ratio / video_ratio) / zoom)
    return (1 - width_share) * x, (1 - height_share) * y, width_share, height_share


class Pictures:
    """The uploaded pictures, decoded in a separate process by the rules of a job, for any thread.

    An upload never changes, so each is judged once. The last decoded pictures are kept for the next job.
    """

    def __init__(self) -> None:
        self._process, self._decoding = ReadingProcess(_LIMITS), threading.Lock()
        self._judged = dict[str, Size | InputError]()
        self._decoded = lru_cache(_MOST_KEPT)(lambda path: self._process.read(read_picture, Path(path)))

    def judge(self, path: str) -> Size | InputError:
        if path not in self._judged:
            with self._decoding:
                if path not in self._judged:
                    try:
                        self._judged[path] = self._decoded(path).size
                    except InputError as error:
                        self._judged[path] = error
        return self._judged[path]

    def contents(self, request: GenerationRequest) -> dict[str, bytes]:
        return {name: self.plain(path) for name, path in picture_paths(request).items()}

    def plain(self, path: str) -> bytes:
        result = self.judge(path)
        if isinstance(result, InputError):
            raise result
        with self._decoding:
            return self._decoded(path).png

    def close(self) -> None:
        self._process.close()


def upload_paths(settings: Mapping[str, object]) -> dict[str, str]:
    return {name: upload_path(settings.get(name), name) for name in PICTURES}


def upload_path(upload: object, name: str) -> str:
    """Find the path of an upload, which the page describes by its name, and Gradio by its path; "" for none.

    Anything else is refused, whether or not the file exists.
    """
    if upload is None or upload == "":
        return ""
    path = cast(dict[str, Any], upload).get("path") if isinstance(upload, dict) else None
    if isinstance(path, str) and _is_uploaded(_path_of(path)):
        return str(_path_of(path))
    raise PictureError(
        f"`{name}` is not an upload; expected an uploaded picture.", "Pass gradio_client.handle_file(path)."
    )


def uploaded(file: Upload) -> Path:
    return Path(upload_path(file.model_dump(), "file"))


def add_upload(file: Upload, name: str, folder: Path, endings: tuple[str, ...]) -> str:
    path, name = uploaded(file), Path(name).name
    if not name.lower().endswith(endings) or name.startswith("."):
        expected = " or ".join(endings)
        raise InputError(f"{short_repr(name)} cannot be added.", f"Choose a file with the ending {expected}.")
    target = folder / name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            shutil.copyfile(path, temporary)
    elif not filecmp.cmp(path, target, shallow=False):
        raise InputError(f"The folder {folder.name} has another file named {name}.", "Rename one of them.")
    return name


def uploaded_pictures(value: object) -> str:
    """Write the setting of the pictures at times with the paths of uploads.

    A value is the form's text, or a program's uploads by their times, as in `{"2.4s": handle_file(path)}`.
    """
    if isinstance(value, dict):
        items = cast(dict[object, object], value).items()
        return "\n".join(f"{time}: {upload_path(upload, TIMED_PICTURES)}" for time, upload in items)
    placed = timed_pictures_of(str(value or ""))
    paths = (upload_path({"path": picture.file}, TIMED_PICTURES) for picture in placed)
    return text_of(replace(picture, file=path) for picture, path in zip(placed, paths, strict=True))


def write_uploads(pictures: Contents, file_name: str = _PICTURE_NAME) -> dict[str, str]:
    """Write pictures to the uploads, where the form finds them, and return their names by setting."""
    names = dict[str, str]()
    for name, content in pictures.items():
        file = uploads_folder() / sha256_of([content]) / file_name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, content)
        names[name] = upload_name(file)
    return names


def write_last_frame(footage: Footage) -> dict[str, str]:
    return write_uploads({START_PICTURE: footage.last_frame}, "last-frame.png")


def uploads_folder() -> Path:
    return Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio").absolute()


def upload_name(path: Path) -> str:
    return f"{_UPLOADS}{path.relative_to(uploads_folder()).as_posix()}"


def _path_of(name: str) -> Path:
    return uploads_folder() / name.removeprefix(_UPLOADS) if name.startswith(_UPLOADS) else Path(name)


def _is_uploaded(path: Path) -> bool:
    try:
        real = path.resolve()
        is_ours = real.is_relative_to(uploads_folder().resolve())
        return is_ours and (not real.exists() or real.is_file())
    except (OSError, ValueError):  # the name is too long or has a NUL, or links form a ring
        return False

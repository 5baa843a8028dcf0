"""The uploaded pictures: their sizes, and the parts of them that become the video."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from app.reading.pictures import PlainPicture, Size, read_picture
from app.reading.process import Limits, ReadingProcess
from diffusers_helper.conditions.footage import Footage
from diffusers_helper.conditions.picture import KEPT_PIXELS, MAX_PIXELS
from diffusers_helper.conditions.pictures import Contents, named_pictures
from diffusers_helper.errors import InputError, PictureError
from diffusers_helper.files import sha256_of, write_atomic
from diffusers_helper.placed import placed_of
from diffusers_helper.request import PICTURES, PLACED, START_PICTURE, GenerationRequest
from diffusers_helper.setting import text_of

_LIMITS = Limits(memory=2 * 2**30, seconds=20, wall_seconds=120.0)
_PICTURE_NAME = "start-picture.png"
_PICTURES_KNOWN = 512
_UPLOADS = "uploads/"  # begins the names by which the page and programs know uploads
_KEPT_BYTES = 128 * 2**20


class Upload(BaseModel):
    """An uploaded file: what the route for uploads returned as its path, or a name that an answer had."""

    path: str


def part_of(size: Size, height: int, width: int, position: float) -> tuple[float, float, float, float]:
    """Return the part of a picture that `picture.fit_picture` keeps for a video of this height and width.

    It is left, top, width and height as shares of the picture.
    """
    wanted, found = width / height, size.used_width / size.used_height
    across, down = min(1.0, wanted / found), min(1.0, found / wanted)
    return (1 - across) * position, (1 - down) * position, across, down


class Pictures:
    """The uploaded pictures, decoded in separate processes by the rules of a job, for any thread.

    Large ones take seconds each, and have the second process, so ordinary ones need not wait for them. An
    upload never changes, so each is judged once. The last decoded pictures are kept for the next job.
    """

    def __init__(self) -> None:
        self._processes = {most: ReadingProcess(_LIMITS) for most in (KEPT_PIXELS, MAX_PIXELS)}
        self._turns = {most: asyncio.Lock() for most in self._processes}
        self._lock = threading.Lock()
        self._known: OrderedDict[str, PlainPicture | InputError] = OrderedDict()

    async def prepare(self, path: str) -> None:
        """Decode a picture, unless it is known, so that `judge` and `plain` need not wait for it.

        Pictures wait here for their turn without holding a thread.
        """
        for most, turn in self._turns.items():
            async with turn:
                known = self._recall(path, whole=True)
                if known or await asyncio.to_thread(self._decode_up_to, most, path):
                    return

    async def prepare_uploads(self, settings: Mapping[str, object]) -> None:
        """Decode the uploads among settings, given as gradio describes them; do nothing for anything else."""
        with contextlib.suppress(InputError):
            for path in filter(None, picture_paths(settings).values()):
                await self.prepare(path)

    def judge(self, path: str) -> Size | InputError:
        """Return the size of a picture, or why it cannot be used."""
        found = self._recall(path, whole=False) or self._decode(path)
        return found if isinstance(found, InputError) else found.size

    def contents(self, request: GenerationRequest) -> dict[str, bytes]:
        return {name: self.plain(path) for name, path in named_pictures(request).items()}

    def plain(self, path: str) -> bytes:
        """Return a picture's content as a plain PNG file; refuse one that cannot be used."""
        found = self._recall(path, whole=True) or self._decode(path)
        if isinstance(found, InputError):
            raise found
        return found.png

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _recall(self, path: str, *, whole: bool) -> PlainPicture | InputError | None:
        """Return what is known about a picture, or None; with `whole`, only if its content is still kept."""
        with self._lock:
            found = self._known.get(path)
            if found is None or (whole and isinstance(found, PlainPicture) and not found.png):
                return None
            self._known.move_to_end(path)
            return found

    def _decode(self, path: str) -> PlainPicture | InputError:
        found = self._decode_up_to(KEPT_PIXELS, path) or self._decode_up_to(MAX_PIXELS, path)
        assert found is not None, "pictures with more pixels are refused"
        return found

    def _decode_up_to(self, most_pixels: int, path: str) -> PlainPicture | InputError | None:
        """Decode a picture, and return it or why it cannot be used; None if it has more pixels than that."""
        try:
            found = self._processes[most_pixels].read(read_picture, Path(path), most_pixels)
        except InputError as error:
            found = error
        if found is None:
            return None
        with self._lock:
            self._known[path] = found
            self._known.move_to_end(path)
            self._forget()
        return found

    def _forget(self) -> None:
        kept = 0
        for path, found in reversed(self._known.items()):
            if isinstance(found, PlainPicture):
                kept += len(found.png)
                if kept > _KEPT_BYTES:
                    self._known[path] = replace(found, png=b"")
        while len(self._known) > _PICTURES_KNOWN:
            self._known.popitem(last=False)


def picture_paths(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the paths of the pictures among settings, each of which is described as an `Upload` is."""
    return {name: upload_path(settings.get(name), name) for name in PICTURES}


def upload_path(upload: object, name: str) -> str:
    """Return the path of an upload, given its description, or "" for no picture.

    The page describes an upload by its name, and Gradio by its path.

    Raises:
        InputError: If it describes anything but an upload, whether or not the file exists.
    """
    if upload is None or upload == "":
        return ""
    path = cast(dict[str, Any], upload).get("path") if isinstance(upload, dict) else None
    if isinstance(path, str) and _is_uploaded(_path_of(path)):
        return str(_path_of(path))
    raise PictureError(
        f"`{name}` is not an upload; expected an uploaded picture.", "Pass gradio_client.handle_file(path)."
    )


def uploaded_file(file: str, name: str) -> str:
    """Return the path of an upload, given its name, or refuse it."""
    path = uploads_folder() / file.removeprefix(_UPLOADS)
    if not _is_uploaded(path):
        raise PictureError(f"`{name}` is not an upload; expected an uploaded file.", "Choose the file again.")
    return str(path)


def uploaded_pictures(given: object) -> str:
    """Return the text of the pictures at times with the paths of uploads.

    Args:
        given: The form's text, or a program's uploads by their times, as in `{"2.4s": handle_file(path)}`.

    Raises:
        InputError: If it cannot be used, or one is no upload.
    """
    if isinstance(given, dict):
        items = cast(dict[object, object], given).items()
        return "\n".join(f"{time}: {upload_path(upload, PLACED)}" for time, upload in items)
    placed = placed_of(str(given or ""))
    return text_of(replace(one, file=uploaded_file(one.file, PLACED)) for one in placed)


def offered(pictures: Contents, file_name: str = _PICTURE_NAME) -> dict[str, str]:
    """Write pictures to the uploads, where the form finds them, and return their names."""
    found = dict[str, str]()
    for name, content in pictures.items():
        file = uploads_folder() / sha256_of([content]) / file_name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, content)
        found[name] = upload_name(file)
    return found


def offered_end(footage: Footage) -> dict[str, str]:
    """Offer the last frame of a video as the start picture; see `offered`."""
    return offered({START_PICTURE: footage.last}, "last-frame.png")


def uploads_folder() -> Path:
    """Return the folder where gradio keeps uploads."""
    return Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio").absolute()


def upload_name(path: Path) -> str:
    """Return the name by which the page knows a file in the folder for uploads."""
    return f"{_UPLOADS}{path.relative_to(uploads_folder()).as_posix()}"


def _path_of(name: str) -> Path:
    """Return the path of an upload, given its name or its path."""
    return uploads_folder() / name.removeprefix(_UPLOADS) if name.startswith(_UPLOADS) else Path(name)


def _is_uploaded(path: Path) -> bool:
    """Return whether a path leads into the folder for uploads, to a file that opens without blocking."""
    try:
        real = path.resolve()
        is_ours = real.is_relative_to(uploads_folder().resolve())
        return is_ours and (not real.exists() or real.is_file())
    except (OSError, ValueError):  # the name is too long or has a NUL, or links form a ring
        return False

"""The files that the page serves: its scripts, the media and logs of jobs, and a bounded set of uploads."""

import contextlib
import re
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from starlette.responses import FileResponse, PlainTextResponse, Response

from app.redact import without_names, without_paths
from app.ui import scripts
from app.ui.pictures import Pictures
from app.ui.queue.records import SMALL_PICTURE
from diffusers_helper.conditions.picture_file import read_small
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.job_folder import JobFolder

# Of a job's folder, the pictures, the first frame, a small copy of the start, the versions of the video, its
# exports, the thumbnails and the end of the log are served.
_SHOWN = re.compile(
    r"(input|first|end_image|pictures_\d{1,2})\.png|picture\.webp|video(-\d{4,9})?\.mp4|"
    r"exports/\d+-\w+\.(gif|mp4|webm|zip)|thumbs/\d{4,9}\.webp|job\.log"
)
_LOG_BYTES = 64 * 1024
_SMALL = (240, 160)  # the pixels of a small start picture, at most
# Served files must not run code, so SVG drawings, which may hold scripts, are not among the types.
_TYPES = {
    ".mp4": "video/mp4", ".webp": "image/webp", ".png": "image/png",
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".avif": "image/avif",
    ".bmp": "image/bmp", ".webm": "video/webm", ".zip": "application/zip",
}  # fmt: skip
# The beginnings of pictures that browsers do not show (TIFF and HEIC) or do not turn (WebP), whatever their
# names end with
_NOT_SHOWN = re.compile(rb"II\*\0|MM\0\*|....ftyp(?!avi[fs])|RIFF....WEBP", re.DOTALL)
_HEADERS = {"content-disposition": "inline", "cache-control": "private"}
_YOUNG_SECONDS, _OLD_SECONDS = 600.0, 86400.0  # a younger upload may be about to become a job


@dataclass(frozen=True)
class ServedFiles:
    """The files of jobs and uploads in absolute folders, under names that do not reveal where they are.

    Missing files, and files that are not served, get the same refusal.
    """

    outputs: Path
    uploads: Path
    pictures: Pictures = field(default_factory=Pictures)

    def of_job(self, path: str) -> Response:
        job, _, name = path.partition("/")
        if _SHOWN.fullmatch(name) is None or not _is_plain(job) or job.startswith("."):
            return _NOT_THERE
        folder = self.outputs / job
        try:
            # The outputs folder may be a link, but no job's folder may be a link that leads out of it.
            is_job = JobFolder(folder).request.is_file() and folder.resolve() == self.outputs.resolve() / job
        except OSError:  # a name that no file system accepts
            return _NOT_THERE
        if not is_job:
            return _NOT_THERE
        if name == SMALL_PICTURE:
            return _served_small_picture(folder)
        is_log = name == JobFolder(folder).log.name
        return _served_log(folder, self.outputs) if is_log else _served(_inside(folder, name))

    def upload(self, path: str) -> Response:
        """Serve an upload, as a PNG of what becomes of it if it is a picture that browsers do not show."""
        is_plain = all(map(_is_plain, path.split("/")))
        real = _inside(self.uploads, path) if is_plain else None
        if real is None or _is_shown(real):
            return _served(real)
        try:
            content = self.pictures.plain(str(self.uploads / path))
        except InputError:  # it is no picture
            return _NOT_THERE
        return Response(content, media_type=_TYPES[".png"], headers=_HEADERS)


_NOT_THERE = PlainTextResponse("There is no such file.\n", 404)


def page_file(address: str) -> Response:
    script = scripts.content(address)
    if script is None:
        return _NOT_THERE
    # The address names the version, so its content never changes.
    headers = {"cache-control": "private, max-age=31536000, immutable"}
    return Response(script[0], media_type=script[1], headers=headers)


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and not any(mark in part for mark in "/\\\0")


def _served(real: Path | None) -> Response:
    kind = real and _TYPES.get(real.suffix.lower())
    return FileResponse(real, media_type=kind, headers=_HEADERS) if real and kind else _NOT_THERE


def _is_shown(file: Path) -> bool:
    kind = _TYPES.get(file.suffix.lower(), "")
    if not kind.startswith("image/"):
        return bool(kind)
    with file.open("rb") as content:
        return _NOT_SHOWN.match(content.read(12)) is None


def _inside(folder: Path, name: str) -> Path | None:
    """Return the real path of a regular file in the folder; None if there is none of this name."""
    try:
        real = (folder / name).resolve(strict=True)
        # No link in the folder may lead out of it.
        is_ours = real.is_relative_to(folder.resolve()) and stat.S_ISREG(real.stat().st_mode)
    except OSError:  # it does not exist, or no file system accepts the name
        return None
    return real if is_ours else None


def _served_small_picture(folder: Path) -> Response:
    job = JobFolder(folder)
    real = _inside(folder, job.input.name) or _inside(folder, job.first.name)
    try:
        content = None if real is None else _small_picture(real, real.stat().st_mtime_ns)
    except (OSError, InputError):  # someone has replaced it
        content = None
    if content is None:
        return _NOT_THERE
    headers = {"content-disposition": "inline", "cache-control": "private, max-age=60"}
    return Response(content, media_type="image/webp", headers=headers)


@lru_cache(maxsize=1024)
def _small_picture(file: Path, _changed: int) -> bytes:
    return read_small(file, *_SMALL)


def _served_log(folder: Path, outputs: Path) -> Response:
    real = _inside(folder, JobFolder(folder).log.name)
    if real is None:
        return _NOT_THERE
    try:
        with real.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return _NOT_THERE
    if size > _LOG_BYTES:
        text = text.partition("\n")[2]
    reported = "\n".join(without_names(without_paths(line, outputs)) for line in text.split("\n"))
    return PlainTextResponse(reported, headers={"cache-control": "no-store"})


@dataclass(frozen=True)
class UploadRoom:
    folder: Path
    max_bytes: int
    max_total_bytes: int = 4 * 2**30

    def make_room(self) -> bool:
        """Remove uploads of a day, and the oldest others as necessary; tell whether one more fits."""
        now, files = time.time(), sorted(self._files())
        total = sum(size for _, size, _ in files)
        for made, size, path in files:
            is_full = total + self.max_bytes > self.max_total_bytes
            if now - made < _YOUNG_SECONDS or not (is_full or now - made > _OLD_SECONDS):
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
                if path.parent != self.folder:
                    path.parent.rmdir()  # unless it is not empty
        has_space = self.folder.is_dir() and shutil.disk_usage(self.folder).free > self.max_bytes
        return has_space and total + self.max_bytes <= self.max_total_bytes

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):
                status = path.lstat()
                if not stat.S_ISDIR(status.st_mode):
                    yield status.st_ctime, status.st_size, path

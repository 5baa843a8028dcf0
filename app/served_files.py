"""Which files the page serves: media of jobs, and what was uploaded; and how much of the latter is kept."""

from __future__ import annotations

import contextlib
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from starlette.responses import FileResponse, PlainTextResponse, Response

from diffusers_helper.job_folder import JobFolder

# What jobs make, and what people upload. All of it is shown as what it is and runs nothing.
_JOB_TYPES = {
    ".mp4": "video/mp4", ".webp": "image/webp", ".png": "image/png",
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg",
}  # fmt: skip
_UPLOAD_TYPES = _JOB_TYPES | {
    ".gif": "image/gif", ".avif": "image/avif", ".bmp": "image/bmp",
    ".tif": "image/tiff", ".tiff": "image/tiff", ".svg": "image/svg+xml",
}  # fmt: skip
_YOUNG_SECONDS = 600.0  # an upload of that age may be about to become a job


@dataclass(frozen=True)
class ServedFiles:
    """Files by their paths.

    Attributes:
        outputs: the folder of the jobs, absolute. Of a job's folder only its media are served.
        uploads: gradio's folder for uploads and for the page's own pictures, absolute.
    """

    outputs: Path
    uploads: Path

    def response(self, path: str) -> Response:
        """The file, ranges included; the same refusal for what is not there and what is not served."""
        found = self._find(path)
        if found is None:
            return PlainTextResponse("There is no such file.\n", 404)
        file, kind = found
        headers = {"cache-control": "private"}
        # A drawing can hold scripts, which run only where it is opened as a page of its own.
        disposition = "attachment" if kind == "image/svg+xml" else "inline"
        return FileResponse(file, media_type=kind, headers={"content-disposition": disposition, **headers})

    def _find(self, text: str) -> tuple[Path, str] | None:
        path = Path(text)
        if not path.is_absolute() or ".." in path.parts or "\0" in text:
            return None
        try:
            if path.is_relative_to(self.outputs):
                folder = self.outputs / path.relative_to(self.outputs).parts[0]
                kinds = _JOB_TYPES if JobFolder(folder).request.is_file() else {}
            else:
                folder, kinds = self.uploads, _UPLOAD_TYPES
            return self._checked(path, folder, kinds)
        except (OSError, ValueError, IndexError):  # nothing there, or a name that no file system takes
            return None

    def _checked(self, path: Path, folder: Path, kinds: dict[str, str]) -> tuple[Path, str] | None:
        inside = path.relative_to(folder)
        kind = kinds.get(path.suffix.lower())
        hidden = any(part.startswith(".") for part in (folder.name, *inside.parts))
        if kind is None or hidden:
            return None
        real = path.resolve(strict=True)
        # Links may stand above the folder, but none in it may lead out.
        if not real.is_relative_to(folder.resolve()) or not stat.S_ISREG(real.stat().st_mode):
            return None
        return real, kind


@dataclass(frozen=True)
class UploadRoom:
    """Keeps the folder of uploads below a size.

    Attributes:
        max_bytes: of one upload.
        max_total_bytes, max_files: of all that is kept.
    """

    folder: Path
    max_bytes: int
    max_total_bytes: int = 4 * 2**30
    max_files: int = 2000
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def make_room(self) -> bool:
        """Removes what broken-off uploads left, then the oldest ones until one more upload fits.

        Returns: False if all that is left is too young to go.
        """
        with self._lock:
            kept = sorted(self._files())
            total, count, now = sum(size for _, size, _ in kept), len(kept), time.time()
            for made, size, path in kept:
                fits = total + self.max_bytes <= self.max_total_bytes and count < self.max_files
                broken_off = path.parent == self.folder  # whole ones lie in folders of their own
                is_young = now - made < _YOUNG_SECONDS
                # The page's own drawings lie here too.
                if is_young or path.suffix == ".svg" or (fits and not broken_off):
                    continue
                with contextlib.suppress(OSError):
                    path.unlink()
                    total, count = total - size, count - 1
                if not broken_off:
                    with contextlib.suppress(OSError):  # not empty
                        path.parent.rmdir()
            return total + self.max_bytes <= self.max_total_bytes and count < self.max_files

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                if not stat.S_ISDIR(found.st_mode):
                    yield found.st_ctime, found.st_size, path

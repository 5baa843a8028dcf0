"""The parts of a model that are not on this machine: their sizes, and the speed of their download."""

from __future__ import annotations

import shutil
import stat
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import published_bytes
from diffusers_helper.units import gb_text

_SPEED_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Absence:
    """The parts of a model from the hub that are not completely on this machine.

    Attributes:
        part_bytes: The bytes of each part's weights that are not here, by its name; 0 without weights.
    """

    model: str
    title: str
    part_bytes: dict[str, int]
    folder: Path
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.part_bytes.values())

    @property
    def has_room(self) -> bool:
        return self.total_bytes < self.free_bytes

    @property
    def sizes(self) -> str:
        """Return the size of the files and the free disk space, as the end of a sentence."""
        return f"{gb_text(self.total_bytes)} GB to download, and {gb_text(self.free_bytes)} GB free"


class NotHere(InputError):
    """A model that would have to be downloaded before it can be used."""

    def __init__(self, absence: Absence) -> None:
        remedy = (
            f"Download it with python -m app models get {absence.model}, with generate --yes, or on the page "
            "under Models."
        )
        if not absence.has_room:
            remedy = "Free space there, or set HF_HOME to a folder on a larger disk."
        super().__init__(
            f"Model {absence.model} is not on this machine: {absence.sizes} in {absence.folder}.",
            remedy,
            setting="model",
        )
        self.absence = absence


def missing_parts(info: ModelInfo) -> list[str]:
    """Return the names of a model's parts that are not completely here, without a request to the hub."""
    return [name for name, source in info.parts.items() if source.is_missing]


def absence_of(info: ModelInfo) -> Absence | None:
    """Return the missing parts of a model, or None if it is complete. No request is sent to the hub."""
    missing = {name: lack_of(info, name) for name in missing_parts(info)}
    if not missing:
        return None
    from huggingface_hub import constants  # only a hub model needs it

    folder = Path(constants.HF_HUB_CACHE)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return Absence(info.name, info.title, missing, folder, shutil.disk_usage(there).free)


def lack_of(info: ModelInfo, part: str) -> int:
    """Return the bytes of a part's weights that would have to be downloaded, by the table of its family."""
    source = info.parts[part]
    published = published_bytes(part, info.family.name) if source.is_missing else 0
    return max(0, published - bytes_in(source.folder))


def bytes_in(folder: Path) -> int:
    """Return the bytes of the files in a folder, including incomplete downloads, or of a single file."""
    total = 0
    for file in folder.iterdir() if folder.is_dir() else (folder,):
        with suppress(FileNotFoundError):  # a download renames its files when they are complete
            status = file.stat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


class Speed:
    """The speed of a download over its last seconds.

    Args:
        done: The bytes that were downloaded before the start.
    """

    def __init__(self, done: int, now: float) -> None:
        self._seen = deque([(now, done)])

    def at(self, done: int, now: float) -> float:
        """Return the bytes per second, given the present number of bytes and time; 0 if not known yet."""
        self._seen.append((now, done))
        while now - self._seen[0][0] > _SPEED_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        begin, first = self._seen[0]
        return max(0.0, (done - first) / (now - begin)) if now > begin else 0.0

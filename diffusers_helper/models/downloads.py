"""The parts of a model that are not on this machine: which, how large, and how far their download is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diffusers_helper.errors import InputError
from diffusers_helper.models.hub_cache import is_complete, local_folder
from diffusers_helper.models.registry import PARTS, ModelInfo, PartSource
from diffusers_helper.planning.networks import published_bytes
from diffusers_helper.units import gb_text

# One of these is in every part; the others say what the part is.
_FILES = ("config.json", "tokenizer_config.json", "preprocessor_config.json")
_TELL_SECONDS, _TELL_SHARE = 1.0, 0.002


@dataclass(frozen=True, slots=True)
class Absence:
    """The parts of a model from the hub that are not completely on this machine.

    Attributes:
        model, title: The model's name, and its name for people.
        part_bytes: The size of each part's weights, by its name; 0 for a part without weights.
        folder: The folder that a download fills.
        free_bytes: The free room there.
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
        """Return the size of the files and the free room, as the end of a sentence."""
        return f"{gb_text(self.total_bytes)} GB to download, and {gb_text(self.free_bytes)} GB free"


class NotHere(InputError):
    """A model that would have to be downloaded before it can be used."""

    def __init__(self, absence: Absence) -> None:
        remedy = "Start it once on the page, which asks before it downloads, or with generate --yes."
        if not absence.has_room:
            remedy = "Free room there, or set HF_HOME to a folder on a larger disk."
        super().__init__(
            f"Model {absence.model} is not on this machine: {absence.sizes} in {absence.folder}.",
            remedy,
            setting="model",
        )
        self.absence = absence


def absence_of(info: ModelInfo) -> Absence | None:
    """Return what of a model is not here, found without a request to the hub; None if all of it is."""
    missing = {name: published_bytes(name) for name in PARTS if not _is_here(info.parts[name])}
    if not missing:
        return None
    from huggingface_hub import constants  # only a hub model needs it

    folder = Path(constants.HF_HUB_CACHE)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return Absence(info.name, info.title, missing, folder, shutil.disk_usage(there).free)


def _is_here(source: PartSource) -> bool:
    if Path(source.location).is_absolute() or Path(source.location, source.subfolder).is_dir():
        return True
    folders = (local_folder(source, file) for file in _FILES)
    return any(folder is not None and is_complete(folder) for folder in folders)


class Download:
    """The progress of one model's download, which is told about once a second.

    Args:
        absence: What is missing; None for nothing.
        tell: Takes the bytes that are here and those that are expected in all.
    """

    def __init__(self, absence: Absence | None, tell: Callable[[int, int], None]) -> None:
        self._expected = absence.part_bytes if absence else dict[str, int]()
        self._total, self._tell = sum(self._expected.values()), tell
        self._seen: dict[str, int] = {}
        self._told, self._told_at = 0, 0.0

    def received(self, part: str, count: int) -> None:
        """Take the number of bytes of a part that have come so far."""
        self._seen[part] = min(max(count, self._seen.get(part, 0)), self._expected.get(part, 0))
        done, now = sum(self._seen.values()), time.monotonic()
        is_news = done - self._told >= _TELL_SHARE * self._total and now - self._told_at >= _TELL_SECONDS
        if self._total and (is_news or done == self._total > self._told):
            self._told, self._told_at = done, now
            self._tell(done, self._total)

    def finished(self, part: str) -> None:
        """Count a part as received."""
        self.received(part, self._expected.get(part, 0))

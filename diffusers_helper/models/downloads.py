"""The components of a model that are not on this machine: their sizes, and the speed of their download."""

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
    """The components of a model from the hub, by their names, whose weights are not all on this machine."""

    model: str
    title: str
    component_bytes: dict[str, int]
    folder: Path
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.component_bytes.values())

    @property
    def has_room(self) -> bool:
        return self.total_bytes < self.free_bytes

    @property
    def sizes(self) -> str:
        return f"{gb_text(self.total_bytes)} GB to download, and {gb_text(self.free_bytes)} GB free"


class NotHere(InputError):
    def __init__(self, absence: Absence) -> None:
        remedy = (
            f"Download it with longtake models get {absence.model}, with generate --yes, or on the page "
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


def missing_components(info: ModelInfo) -> list[str]:
    return [name for name, source in info.components.items() if source.is_missing]


def absence_of(info: ModelInfo) -> Absence | None:
    """Find the missing components of a model, without a request to the hub; None if it is complete."""
    missing = {name: missing_bytes(info, name) for name in missing_components(info)}
    if not missing:
        return None
    from huggingface_hub import constants  # only a hub model needs it

    folder = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return Absence(info.name, info.title, missing, folder, shutil.disk_usage(existing).free)


def missing_bytes(info: ModelInfo, component: str) -> int:
    source = info.components[component]
    dtype = info.file_dtype
    published = published_bytes(component, info.family.name, dtype) if source.is_missing else 0
    return max(0, published - bytes_in(source.folder))


def bytes_in(folder: Path) -> int:
    """Count the bytes of the files in a folder, including incomplete downloads, or of a single file."""
    total = 0
    for file in folder.iterdir() if folder.is_dir() else (folder,):
        with suppress(FileNotFoundError):  # a download renames its files when they are complete
            status = file.stat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


class Speed:
    """The speed of a download over its last seconds, after `num_bytes` that were there before."""

    def __init__(self, num_bytes: int, now: float) -> None:
        self._samples = deque([(now, num_bytes)])

    def at(self, num_bytes: int, now: float) -> float:
        self._samples.append((now, num_bytes))
        while now - self._samples[0][0] > _SPEED_SECONDS and len(self._samples) > 2:
            self._samples.popleft()
        start_time, start_bytes = self._samples[0]
        return max(0.0, (num_bytes - start_bytes) / (now - start_time)) if now > start_time else 0.0

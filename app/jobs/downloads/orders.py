"""The models that a user has ordered, kept in the outputs folder, so that they outlast every program."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.machine.file_locks import Lock
from diffusers_helper.strangers.limited_json import plain_json

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class DownloadOrder:
    """What a user wants of a model that is not completely here.

    Attributes:
        state: Whether it is to be downloaded, rests until a user lets it go on, or could not be downloaded.
        message: Why it could not be downloaded.
        remedy: What a user can do about that.
        total_bytes: The size of the whole model, as the hub lists it; 0 while that is not known.
    """

    state: Literal["wanted", "paused", "failed"]
    message: str = ""
    remedy: str = ""
    total_bytes: int = 0


class DownloadOrders:
    """The orders of one outputs folder, which any program may read and change.

    Args:
        folder: The folder of the orders, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> dict[str, DownloadOrder]:
        """Return the orders by the names of their models."""
        found: dict[str, DownloadOrder] = {}
        for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError, ValueError, TypeError):  # damaged, or just taken away
                found[file.stem] = DownloadOrder(**plain_json(read_file(file)))
        return found

    def write(self, model: str, order: DownloadOrder) -> None:
        """Put an order in the place of an earlier one.

        Raises:
            OSError: If it cannot be written.
        """
        for folder in (self._folder.parent, self._folder):  # but not the folder that holds all jobs
            folder.mkdir(exist_ok=True)
        write_atomic(self._folder / f"{model}{_SUFFIX}", json.dumps(asdict(order)).encode())

    def forget(self, model: str) -> None:
        """Remove the order for a model, if there is one."""
        (self._folder / f"{model}{_SUFFIX}").unlink(missing_ok=True)

    def lock(self, model: str) -> Lock | None:
        """Return the lock of the program that executes an order; None if another program holds it."""
        try:
            return Lock(self._folder / f"{model}.lock")
        except BlockingIOError:
            return None

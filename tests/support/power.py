"""A disk that loses everything that was not synced, as in a power cut."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.bad_disk import sitecustomize
from tests.support.bad_disk.sitecustomize import record


class Disk:
    """A record of everything in a folder that was synced: the contents of files and the names in folders.

    After a power cut, a file has its content at its last sync, or is empty, and only has a name that its
    folder had at the folder's own last sync. SQLite's own syncs are not seen, so an index is always lost.

    Attributes:
        environment: The variables that make other programs add to the record.
    """

    def __init__(self, root: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin to record the folder `root`, in the folder `own` on the same file system."""
        self._root, self._own, self._sync = root, own, os.fsync
        for kind in ("names", "contents", "links"):
            (own / kind).mkdir(parents=True)
        self.environment = {
            "BAD_DISK_ROOT": str(root), "BAD_DISK_RECORD": str(own),
            "PYTHONPATH": str(Path(sitecustomize.__file__).parent),
        }  # fmt: skip
        monkeypatch.setattr(os, "fsync", self._record)

    def _record(self, descriptor: int) -> None:
        self._sync(descriptor)
        record(descriptor, self._root, self._own)

    def cut(self, target: Path) -> Path:
        """Write everything that would survive a power cut now to another folder, and return that folder."""
        self._write(self._root.stat().st_ino, target)
        return target

    def lose(self) -> None:
        """Remove everything from the folder that would not survive a power cut now, while nothing uses it."""
        left = self.cut(self._own / "left")
        self._root.rename(self._own / f"before-{len(list(self._own.iterdir()))}")
        left.rename(self._root)
        for path in (self._root, *self._root.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            record(descriptor, self._root, self._own)
            os.close(descriptor)

    def _write(self, number: int, folder: Path) -> None:
        folder.mkdir()
        names = self._own / "names" / f"{number}.json"
        for name, (inode, is_folder) in json.loads(names.read_text()).items() if names.exists() else ():
            content = self._own / "contents" / str(inode)
            if is_folder:
                self._write(inode, folder / name)
            else:
                (folder / name).write_bytes(content.read_bytes() if content.exists() else b"")

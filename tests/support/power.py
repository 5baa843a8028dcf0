"""A disk that loses what was not synced, as a power cut may."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


class Disk:
    """The record of everything that was synced: contents of files, and names in folders.

    A file comes back with its content at its last sync, or empty, and only under a name that its folder had
    at the folder's own last sync. SQLite syncs on its own, so that an index never comes back.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._kept: list[int] = []  # open files, whose numbers are not given to other files
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, file: int) -> None:
        self._kept.append(os.dup(file))
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            entries = os.scandir(f"/proc/self/fd/{file}")
            self._names[found.st_ino] = {one.name: (one.inode(), one.is_dir()) for one in entries}
        else:
            self._contents[found.st_ino] = Path(f"/proc/self/fd/{file}").read_bytes()

    def cut(self, target: Path) -> Path:
        """Write what a power cut would leave now to another folder, and return that."""
        self._write(self._root.stat().st_ino, target)
        return target

    def _write(self, number: int, folder: Path) -> None:
        folder.mkdir()
        for name, (inode, is_folder) in self._names.get(number, {}).items():
            if is_folder:
                self._write(inode, folder / name)
            else:
                (folder / name).write_bytes(self._contents.get(inode, b""))

    def close(self) -> None:
        for file in self._kept:
            os.close(file)

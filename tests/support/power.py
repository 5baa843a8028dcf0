"""A disk that loses everything that was not synced, as in a power cut."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path

from tests.support import bad_disk

_SOURCE = Path(*bad_disk.__path__) / "record_syncs.c"


class Disk:
    """A record of everything in a folder that was synced: the contents of files and the names in folders.

    After a power cut, a file has its content at its last sync, or is empty, and only has a name that its
    folder had at the folder's own last sync.

    Attributes:
        environment: The variables that make other programs add to the record.
    """

    def __init__(self, root: Path, own: Path) -> None:
        """Begin to record the folder `root`, in the folder `own` on the same file system."""
        self._root, self._own = root, own
        for kind in ("records", "links"):
            (own / kind).mkdir(parents=True)
        library = own / "record_syncs.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
        self.environment = {
            "BAD_DISK_ROOT": str(root), "BAD_DISK_RECORD": str(own), "LD_PRELOAD": str(library),
        }  # fmt: skip

    @property
    def syncs(self) -> list[str]:
        """Return the lines of the record, one for each sync so far."""
        log = self._own / "log"
        return log.read_text().splitlines() if log.exists() else []

    def cut(self, target: Path, syncs: int | None = None) -> Path:
        """Write everything that would survive a power cut to another folder, and return that folder.

        Args:
            syncs: The number of syncs before the cut; None for all so far.
        """
        latest = dict(line.split() for line in self.syncs[:syncs])
        self._write(str(self._root.stat().st_ino), target, latest)
        return target

    def lose(self) -> None:
        """Remove everything from the folder that would not survive a power cut now, while nothing uses it."""
        left = self.cut(self._own / "left")
        self._root.rename(self._own / f"before-{len(list(self._own.iterdir()))}")
        left.rename(self._root)
        for path in (self._root, *self._root.rglob("*")):
            self._record(path)

    def _record(self, path: Path) -> None:
        """Record a file or a folder as it is, as if it had been synced."""
        number = path.stat().st_ino
        record = self._own / "records" / secrets.token_hex(8)
        if path.is_dir():
            names = {one.name: [one.stat().st_ino, one.is_dir()] for one in path.iterdir()}
            record.write_text(json.dumps(names))
        else:
            with contextlib.suppress(FileExistsError):
                os.link(path, self._own / "links" / str(number))
            shutil.copyfile(path, record)
        with (self._own / "log").open("a") as log:
            log.write(f"{number}{'/' * path.is_dir()} {record.name}\n")

    def _write(self, number: str, folder: Path, latest: dict[str, str]) -> None:
        folder.mkdir()
        records = self._own / "records"
        own = latest.get(f"{number}/")
        names = json.loads((records / own).read_text()) if own else {}
        for name, (inode, is_folder) in names.items():
            if is_folder:
                self._write(str(inode), folder / name, latest)
            elif str(inode) in latest:
                shutil.copyfile(records / latest[str(inode)], folder / name)
            else:
                (folder / name).touch()

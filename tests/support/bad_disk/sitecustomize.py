"""A record of everything that programs sync, put into them from outside by their PYTHONPATH.

BAD_DISK_RECORD names a folder on the same file system. At each sync it receives a file's content as
`contents/INODE`, or a folder's names as `names/INODE.json`. A link to each file, `links/INODE`, keeps another
file from getting the same inode. Files outside of the folder BAD_DISK_ROOT are not recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from pathlib import Path


def record(descriptor: int, root: Path, folder: Path) -> None:
    """Record the content of an open file, or the names in an open folder, as they are now."""
    opened = Path(f"/proc/self/fd/{descriptor}")
    path, found = opened.readlink(), os.fstat(descriptor)
    if not path.is_relative_to(root):
        return
    temporary = folder / secrets.token_hex(8)
    if stat.S_ISDIR(found.st_mode):
        with os.scandir(opened) as entries:
            names = {one.name: [one.inode(), one.is_dir()] for one in entries}
        temporary.write_text(json.dumps(names))
        temporary.replace(folder / "names" / f"{found.st_ino}.json")
        return
    with contextlib.suppress(FileExistsError, FileNotFoundError):  # recorded before, or deleted since
        os.link(path, folder / "links" / str(found.st_ino))
    shutil.copyfile(opened, temporary)
    temporary.replace(folder / "contents" / str(found.st_ino))


def _record_all_syncs(root: Path, folder: Path) -> None:
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        record(descriptor, root, folder)

    os.fsync = fsync


if "BAD_DISK_RECORD" in os.environ:
    _record_all_syncs(Path(os.environ["BAD_DISK_ROOT"]), Path(os.environ["BAD_DISK_RECORD"]))

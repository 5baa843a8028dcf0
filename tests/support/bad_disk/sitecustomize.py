"""A disk that is full, simulated in programs by their PYTHONPATH.

BAD_DISK_FULL names a file of two lines, which are a part of a path and a number. For paths with that part,
opening a file for writing, or moving one there, fails as on a full disk, that number of times. Each failure
adds a byte to a file beside it, whose name ends with `.failed`.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any


def _fail_as_full(control: Path) -> None:
    failed = control.with_name(f"{control.name}.failed")

    def fail(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if not (set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR)):
                return
        elif event == "os.rename":
            path = arguments[1]
        else:
            return
        if not isinstance(path, str) or path == str(failed):
            return
        part, times = control.read_text().splitlines()
        if part in path and (failed.stat().st_size if failed.exists() else 0) < int(times):
            with failed.open("ab") as file:
                file.write(b"x")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    sys.addaudithook(fail)


if "BAD_DISK_FULL" in os.environ:
    _fail_as_full(Path(os.environ["BAD_DISK_FULL"]))

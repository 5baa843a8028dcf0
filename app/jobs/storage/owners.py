"""The programs that make the jobs of an outputs folder, each with a lock of the kernel while it lives."""

import os
import platform
import time
from pathlib import Path
from typing import Literal

from diffusers_helper.machine.file_locks import Lock, is_locked

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a computer
_LOCKS = "program-"


def _host() -> str:
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{platform.node().replace(':', '')}/{boot}"


class JobOwner:
    """This program as an owner of jobs. Call `enter`, and the functions below, while the database is locked.

    Its name is `host:pid:start`, and empty before `enter`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: tuple[str, Lock] | None = None

    @property
    def name(self) -> str:
        held = self._held
        return held[0] if held else ""

    def enter(self) -> str:
        if self.name and not _lock_file(self._folder, self.name).exists():
            self.leave()  # its file was removed
        if not self._held:
            name = f"{_host()}:{os.getpid()}:{time.time_ns()}"
            self._held = name, Lock(_lock_file(self._folder, name))
        return self.name

    def leave(self) -> None:
        """Give the lock back. Several threads may call this, also without the database."""
        held, self._held = self._held, None
        if held:
            _lock_file(self._folder, held[0]).unlink(missing_ok=True)
            held[1].release()


def standing_of(folder: Path, owner: str) -> Literal["alive", "dead", "unknown"]:
    """Say whether a program lives. The locks of another computer prove nothing, as on a network drive."""
    host, boot = owner.partition(":")[0].split("/")
    own_host, own_boot = _host().split("/")
    if host != own_host and boot != own_boot:
        return "unknown"
    return "alive" if is_locked(_lock_file(folder, owner)) else "dead"


def remove_dead_locks(folder: Path) -> None:
    for file in folder.glob(f"{_LOCKS}*"):
        if not is_locked(file):
            file.unlink(missing_ok=True)


def _lock_file(folder: Path, owner: str) -> Path:
    _, pid, start = owner.split(":")
    return folder / f"{_LOCKS}{pid}-{start}"

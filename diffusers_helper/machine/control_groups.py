"""The limits of control groups, into which systemd, Slurm and containers put a process.

Each group from that of the process up to the mount may have limits, of which the smallest counts; see
https://docs.kernel.org/admin-guide/cgroup-v2.html, and cgroup-v1 beside it. In a container, a group may have
no files; then the mount stands for it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
# The files of the versions 2 and 1, and the beginning of the names in memory.stat that include groups below.
_MEMORY = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))


def memory_limits(root: Path = _ROOT) -> Iterator[tuple[int, int]]:
    """Yield the limit of each group that has one, and how much of it is available, in bytes.

    Like the kernel's `MemAvailable`, that includes the pages of files, which the kernel drops when needed.
    """
    for folder in _groups(root, "memory"):
        for limit_name, used_name, prefix in _MEMORY:
            limit, used = (_text(folder / name).strip() for name in (limit_name, used_name))
            if limit.isdigit() and used.isdigit():
                pages = rf"^{prefix}(?:in)?active_file (\d+)$"
                cached = map(int, re.findall(pages, _text(folder / "memory.stat"), re.MULTILINE))
                yield int(limit), max(0, int(limit) - int(used) + sum(cached))


def processors(root: Path = _ROOT) -> int:
    """Count the processors that this process may keep busy, by its affinity and its groups; at least 1."""
    count = float(os.cpu_count() or 1)
    if mask := re.search(r"^Cpus_allowed:\s*([\da-f,]+)$", _text(root / "proc/self/status"), re.MULTILINE):
        count = min(count, int(mask[1].replace(",", ""), 16).bit_count())
    for folder in _groups(root, "cpu"):
        quota_names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota = (_text(folder / "cpu.max") or " ".join(_text(folder / name) for name in quota_names)).split()
        if len(quota) == 2 and all(word.isdigit() for word in quota) and int(quota[1]):
            count = min(count, int(quota[0]) / int(quota[1]))
    return max(1, int(count))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that may limit what a controller counts, each before its parents."""
    mount = root / "sys/fs/cgroup"
    lines = re.findall(r"^\d+:([^:]*):(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    v1_path = next((path for names, path in lines if controller in names.split(",")), None)
    base, path = (mount, dict(lines).get("", "/")) if v1_path is None else (mount / controller, v1_path)
    # The path of a process outside of its container's namespace begins with "..".
    folder = base if ".." in path.split("/") else base / path.lstrip("/")
    yield from (folder, *folder.parents[: len(folder.parts) - len(base.parts)])


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

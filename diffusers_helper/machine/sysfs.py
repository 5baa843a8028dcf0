"""The facts about cards and memory in the kernel's files, which need neither torch nor a driver library.

Every function takes the root of the file system, so a test can provide the files of another machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Gpu:
    """One AMD card.

    Attributes:
        arch: The gfx name, such as "gfx1100".
        name: The driver's name for the card, or "" if it gives none.
        vram_total, vram_used: The card's own memory in bytes; for an APU, the memory that the firmware
            reserves.
        gtt_total, gtt_used: The main memory that the card may use, in bytes.
        is_apu: Whether the card shares the processor's memory.
    """

    arch: str
    name: str = ""
    vram_total: int = 0
    vram_used: int = 0
    gtt_total: int = 0
    gtt_used: int = 0
    is_apu: bool = False


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The sizes of the main memory and of swap, in bytes."""

    total: int
    available: int
    swap_total: int
    swap_free: int


def gfx_name(target_version: int) -> str:
    """Return the gfx name for KFD's `gfx_target_version`, such as gfx1100 for 110000 and gfx90a for 90010."""
    major, minor, stepping = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def amd_gpus(root: Path = ROOT) -> list[Gpu]:
    """Return the AMD cards that ROCm's kernel driver lists, in its order; without the driver, none."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    found: list[Gpu] = []
    for node in sorted(nodes.glob("[0-9]*"), key=lambda path: int(path.name)):
        properties = _properties(node / "properties")
        target = properties.get("gfx_target_version", 0)
        if target:
            found.append(_gpu(root, node, properties, gfx_name(target)))
    return found


def _gpu(root: Path, node: Path, properties: dict[str, int], arch: str) -> Gpu:
    card = _card_of(root, properties)
    memory = {
        f"{kind}_{what}": _number(card / f"mem_info_{kind}_{what}") if card else 0
        for kind in ("vram", "gtt")
        for what in ("total", "used")
    }
    if not memory["vram_total"]:
        memory["vram_total"] = sum(_bank_sizes(node))
    return Gpu(
        arch=arch,
        name=_text(card / "product_name") if card else "",
        is_apu=properties.get("cpu_cores_count", 0) > 0,
        **memory,
    )


def _card_of(root: Path, properties: dict[str, int]) -> Path | None:
    """Return the card's folder under /sys/class/drm, given the number of its render node in KFD's files."""
    minor = properties.get("drm_render_minor")
    folder = root / f"sys/class/drm/renderD{minor}/device"
    return folder if minor and folder.is_dir() else None


def _bank_sizes(node: Path) -> Iterator[int]:
    for bank in node.glob("mem_banks/*/properties"):
        properties = _properties(bank)
        if properties.get("heap_type") in (1, 2):  # the card's own memory, visible to the processor or not
            yield properties.get("size_in_bytes", 0)


def _properties(file: Path) -> dict[str, int]:
    """Return the numbers in a file whose lines consist of a name and a number."""
    return {match[1]: int(match[2]) for match in re.finditer(r"^(\w+) (\d+)$", _text(file), re.MULTILINE)}


def _number(file: Path) -> int:
    text = _text(file)
    return int(text) if text.isdigit() else 0


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def rocm_version(root: Path = ROOT) -> str:
    """Return the version of ROCm in /opt/rocm, or "" without one. Torch does not need that installation."""
    return _text(root / "opt/rocm/.info/version")


def host_memory(root: Path = ROOT) -> HostMemory:
    """Return the figures of /proc/meminfo, reduced to the limit of the container; zeros without that file."""
    sizes = {
        match[1]: int(match[2]) * _KIB
        for match in re.finditer(r"^(\w+): +(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    }
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    group = root / "sys/fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if 0 < limit < total:
        cached = _properties(group / "memory.stat").get("file", 0)
        total, available = limit, min(available, max(0, limit - used + cached))
    return HostMemory(total, available, sizes.get("SwapTotal", 0), sizes.get("SwapFree", 0))

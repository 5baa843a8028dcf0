"""Writers of the files with which the kernel describes a machine."""

from __future__ import annotations

from pathlib import Path

GB = 1024**3


def write_card(
    root: Path,
    target: int,
    vram: int,
    *,
    number: int = 1,
    used: int = 0,
    gtt: int = 0,
    cores: int = 0,
    name: str = "",
) -> None:
    """Write one AMD card and its memory into KFD's topology; `target` is its `gfx_target_version`."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    write(nodes / "0/properties", "cpu_cores_count 16\ngfx_target_version 0\n")
    render = 127 + number
    text = f"cpu_cores_count {cores}\ngfx_target_version {target}\ndrm_render_minor {render}\n"
    write(nodes / f"{number}/properties", text)
    card = root / f"sys/class/drm/renderD{render}/device"
    sizes = {"vram_total": vram, "vram_used": used, "gtt_total": gtt, "gtt_used": 0}
    for kind, size in sizes.items():
        write(card / f"mem_info_{kind}", f"{size}\n")
    if name:
        write(card / "product_name", f"{name}\n")


def write_memory(root: Path, total: int, available: int, swap: int = 0, swap_free: int = 0) -> None:
    rows = {"MemTotal": total, "MemAvailable": available, "SwapTotal": swap, "SwapFree": swap_free}
    write(root / "proc/meminfo", "".join(f"{key}:   {size // 1024} kB\n" for key, size in rows.items()))


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")

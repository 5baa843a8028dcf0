"""Writers of the files with which the kernel describes a machine."""

import json
from pathlib import Path
from typing import Any

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


TOPOLOGIES = Path(__file__).parent / "topologies"


def write_machine(root: Path, name: str) -> dict[str, Any]:
    """Write the files of one of the machines in `topologies`, and return its facts with what is expected."""
    facts: dict[str, Any] = json.loads((TOPOLOGIES / f"{name}.json").read_text(encoding="utf-8"))
    for number, node in enumerate(facts["nodes"]):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        _write_properties(folder / "properties", node["properties"])
        for bank, properties in enumerate(node.get("banks", ())):
            _write_properties(folder / f"mem_banks/{bank}/properties", properties)
        if "pci" in node:
            device = root / f"sys/bus/pci/devices/{node['pci']}"
            for file, text in node["device"].items():
                write(device / file, f"{text}\n")
            render = root / f"sys/class/drm/renderD{node['properties']['drm_render_minor']}"
            render.mkdir(parents=True)
            (render / "device").symlink_to(device)
    for file, text in facts["files"].items():
        write(root / file, text)
    if facts["has_kfd"]:
        write(root / "dev/kfd", "")
    write_memory(root, facts["ram_gb"] * GB, facts["ram_gb"] * GB)
    return facts


def _write_properties(file: Path, properties: dict[str, int]) -> None:
    write(file, "".join(f"{name} {value}\n" for name, value in properties.items()))

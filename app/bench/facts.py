"""The facts about this machine that a report of the benchmark tells, and the cards that have reports.

Nothing here names the user, the machine or its folders.
"""

import os
import platform
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.machine import cache_folder, output_of, this_machine
from diffusers_helper import __version__
from diffusers_helper.machine.packages import version_of
from diffusers_helper.machine.sysfs import ROOT, amd_gpus, card_readings, host_memory, read_text
from diffusers_helper.planning.cards.reported import CARDS
from diffusers_helper.planning.profiles import Kind, Machine

Readings = dict[str, float]
_SENSORS = ("clock_hz", "power_watts", "temperature_celsius")
_NVIDIA_SENSORS = "clocks.sm,power.draw,temperature.gpu"


def machine_facts(environ: Mapping[str, str], probed: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the versions, the card, the processor, the main memory, and what torch told (`app.probe`)."""
    machine = this_machine(environ)
    kind: Kind = machine.kind if machine.kind == "cpu" or probed.get("devices") else "cpu"
    has_card = kind != "cpu"
    nvidia = _nvidia("driver_version") if kind == "cuda" else []
    model = re.search(r"^model name\s*:\s*(.+)$", read_text(ROOT / "proc/cpuinfo"), re.MULTILINE)
    driver = read_text(ROOT / "sys/module/amdgpu/version") if kind == "rocm" else next(iter(nvidia), "")
    return {
        "versions": {
            "longtake": __version__, "python": platform.python_version(),
            "torch": probed.get("torch") or version_of("torch"), "rocm": probed.get("hip") or None,
            "cuda": probed.get("cuda") or None, "driver": driver or None, "kernel": platform.release(),
        },
        "card": {
            "kind": kind, "arch": machine.arch if has_card else "",
            "name": str(probed.get("name") or machine.name) if has_card else "CPU",
            "memory_bytes": int(probed.get("total_bytes") or machine.total_bytes) if has_card else None,
            "link": machine.link.name if machine.link and has_card else None,
        },
        "processor": {"name": model[1] if model else platform.machine(), "cores": os.cpu_count()},
        "ram_bytes": host_memory().total,
    }  # fmt: skip


def _nvidia(fields: str) -> list[str]:
    lines = output_of("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits").splitlines()
    return [value.strip() for line in lines[:1] for value in line.split(",")]


def sensors(environ: Mapping[str, str]) -> Callable[[], Readings] | None:
    machine = this_machine(environ)
    gpus = amd_gpus(ROOT) if machine.kind == "rocm" else []
    gpu = next((gpu for gpu in gpus if gpu.arch == machine.arch), gpus[0] if gpus else None)
    if gpu is not None and (folder := gpu.folder) is not None:
        return lambda: card_readings(folder)
    has_sensors = machine.kind == "cuda" and _nvidia(_NVIDIA_SENSORS)
    return _nvidia_readings if has_sensors else None


def _nvidia_readings() -> Readings:
    units = zip(_SENSORS, (1e6, 1, 1), _nvidia(_NVIDIA_SENSORS), strict=False)
    numbers = {name: unit * float(text) for name, unit, text in units if re.fullmatch(r"\d+(\.\d+)?", text)}
    return {name: number for name, number in numbers.items() if number}


def summary_of(sensor_values: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float] | None]:
    return {
        name: {"median": statistics.median(values), "most": max(values)} if values else None
        for name in _SENSORS
        for values in [sensor_values.get(name)]
    }


def report_so_far() -> Path:
    return cache_folder() / "bench" / "report.json"


def hint(machine: Machine, reported: Sequence[str] = CARDS) -> str:
    """A sentence that offers the benchmark on a card without a report; "" on others and on a CPU."""
    if machine.kind == "cpu" or (machine.arch or machine.name) in reported:
        return ""
    return (
        "nobody has sent figures of this card yet; `longtake bench --report card.json` measures it in "
        "three minutes"
    )

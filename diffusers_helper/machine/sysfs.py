"""The facts about cards, memory and processor in the kernel's files, without torch or a driver."""

import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from diffusers_helper.machine.control_groups import memory_limits

ROOT = Path("/")
_KIB = 1024
# GT/s of a lane by the generation of PCIe, and the share of them that is data (8b/10b, 128b/130b, flits).
_GENERATIONS = {
    1: (2.5, 8 / 10), 2: (5.0, 8 / 10), 3: (8.0, 128 / 130), 4: (16.0, 128 / 130), 5: (32.0, 128 / 130),
    6: (64.0, 242 / 256),
}  # fmt: skip
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
# The graphics of processors. KFD lists them as nodes without cores (published topologies of Strix Halo and of
# Ryzen 5000 to 9000); only an MI300A has its cores in the same node.
INTEGRATED = frozenset(
    f"gfx{number}" for number in ("90c", 1013, 1033, 1035, 1036, 1103, 1150, 1151, 1152, 1153)
)
# Each variable selects cards among those that the variables before it have left.
VISIBLE_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
# GPUs without a build of torch, and that of a desktop Ryzen, whose two compute units are slower than the
# processor. scripts/setup.sh has both lists, too.
UNUSABLE = frozenset(f"gfx{number}" for number in (803, "90c", 1013, 1036))


@dataclass(frozen=True, slots=True)
class Link:
    generation: int
    lanes: int

    @property
    def name(self) -> str:
        return f"PCIe {self.generation}.0 x{self.lanes}"

    @property
    def bytes_per_second(self) -> float:
        transfers, share = _GENERATIONS[self.generation]
        return transfers * 1e9 * share / 8 * self.lanes


@dataclass(frozen=True, slots=True)
class Gpu:
    """One AMD card. For an APU, `vram` is what the firmware reserves, and `gtt` what it may borrow.

    `bank_bytes` is what ROCm's kernel driver gives to programs, `uuid` the name by which ROCr knows the card,
    and `folder` that under /sys/class/drm; 0, "" and None if it tells none.
    """

    arch: str
    name: str = ""
    vram_total: int = 0
    vram_used: int = 0
    gtt_total: int = 0
    gtt_used: int = 0
    bank_bytes: int = 0
    is_apu: bool = False
    link: Link | None = None
    address: str = ""
    uuid: str = ""
    folder: Path | None = field(default=None, compare=False)

    @property
    def total_bytes(self) -> int:
        """The memory for programs. An APU has what the firmware reserves or GTT, never their sum.

        The driver's memory banks say which of the two it is (rocm-systems' pull requests 5596 and 8475).
        Older drivers list no bank, and take the larger of the two.
        """
        if not self.is_apu:
            return self.vram_total or self.bank_bytes
        return self.bank_bytes or max(self.vram_total, self.gtt_total)

    @property
    def uses_gtt(self) -> bool:
        """Whether this memory is lent from main memory, as opposed to reserved by the firmware."""
        return self.is_apu and self.total_bytes > self.vram_total

    @property
    def used_bytes(self) -> int:
        return self.gtt_used if self.uses_gtt else self.vram_used


@dataclass(frozen=True, slots=True)
class HostMemory:
    total: int
    available: int
    swap_total: int
    swap_free: int


def gfx_name(target_version: int) -> str:
    """Decode KFD's `gfx_target_version`: gfx1100 for 110000, and gfx90a for 90010."""
    major, minor, stepping = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def usable_gpus(gpus: Sequence[Gpu], *, has_nvidia: bool = False) -> list[Gpu]:
    usable = [gpu for gpu in gpus if gpu.arch not in UNUSABLE]
    discrete = [gpu for gpu in usable if not gpu.is_apu]
    return discrete if discrete or has_nvidia else usable


def visible_gpu(gpus: list[Gpu], environ: Mapping[str, str], *, has_nvidia: bool = False) -> Gpu | None:
    """Find the first card that jobs run on and that the environment does not hide.

    A card that a variable names is taken, even if jobs would not run on it. Unknown names are ignored.
    """
    variables = [variable for variable in VISIBLE_VARIABLES if variable in environ]
    if not variables or (has_nvidia and variables == ["CUDA_VISIBLE_DEVICES"]):
        gpus = usable_gpus(gpus, has_nvidia=has_nvidia)
    for variable in variables:
        if is_hidden(environ[variable]):
            return None
        first_name = environ[variable].split(",")[0].strip()
        if first_name.isdigit():
            gpus = gpus[int(first_name) :]
        gpus = [gpu for gpu in gpus if first_name.lower() == gpu.uuid.lower()] or gpus
    return gpus[0] if gpus else None


def names_to_see(gpus: Sequence[Gpu]) -> str:
    """Name the cards for ROCR_VISIBLE_DEVICES; "" if there are no others to be hidden."""
    usable = usable_gpus(gpus)
    names = [gpu.uuid or str(index) for index, gpu in enumerate(gpus) if gpu in usable]
    return ",".join(names) if len(usable) < len(gpus) else ""


def is_hidden(visible: str) -> bool:
    first = visible.split(",")[0].strip()
    return not first or first.startswith("-")


def amd_gpus(root: Path = ROOT) -> list[Gpu]:
    """List the AMD cards that ROCm's kernel driver has, in its order; without the driver, none."""
    folder = root / "sys/class/kfd/kfd/topology/nodes"
    nodes = sorted(folder.glob("[0-9]*"), key=lambda path: int(path.name))
    properties = ((node, _properties(node / "properties")) for node in nodes)
    return [_gpu(root, node, facts) for node, facts in properties if facts.get("gfx_target_version")]


def rocminfo_gpus(text: str) -> list[Gpu]:
    """Parse the output of `rocminfo`, for a system without KFD's files, such as WSL."""
    gpus = list[Gpu]()
    for agent in text.split("Agent ")[1:]:
        arch = re.search(r"^ *Name: +(gfx\w+)", agent, re.MULTILINE)
        name = re.search(r"Marketing Name: +(\S.*?) *$", agent, re.MULTILINE)
        pools = re.findall(r"Segment: +GLOBAL.*?Size: +(\d+)", agent, re.DOTALL)
        if arch:
            total = max((int(size) * _KIB for size in pools), default=0)
            is_apu = arch[1] in INTEGRATED
            gpus.append(Gpu(arch[1], name[1] if name else "", total, bank_bytes=total, is_apu=is_apu))
    return gpus


def _gpu(root: Path, node: Path, properties: dict[str, int]) -> Gpu:
    arch = gfx_name(properties["gfx_target_version"])
    # The number of the render node in KFD's files names the card's folder under /sys/class/drm.
    minor = properties.get("drm_render_minor")
    folder = root / f"sys/class/drm/renderD{minor}/device"
    card = folder if minor and folder.is_dir() else None
    banks = map(_properties, node.glob("mem_banks/*/properties"))
    memory = {
        f"{kind}_{figure}": _number(card / f"mem_info_{kind}_{figure}") if card else 0
        for kind in ("vram", "gtt")
        for figure in ("total", "used")
    }
    return Gpu(
        arch=arch,
        name=read_text(card / "product_name") if card else "",
        # The card's own memory is visible to the processor (1) or not (2).
        bank_bytes=sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2)),
        is_apu=arch in INTEGRATED or properties.get("cpu_cores_count", 0) > 0,
        folder=card,
        link=_link(card, root) if card else None,
        address=card.resolve().name if card else "",
        uuid=f"GPU-{unique}" if card and (unique := read_text(card / "unique_id").removeprefix("0x")) else "",
        **memory,
    )


def has_nvidia(root: Path = ROOT) -> bool:
    return (root / "proc/driver/nvidia/gpus").is_dir() or (root / "dev/nvidia0").exists()


def nvidia_link(root: Path = ROOT) -> Link | None:
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    cards = (device for device in devices if read_text(device / "vendor") == _NVIDIA)
    card = next((device for device in cards if read_text(device / "class").startswith(_DISPLAY)), None)
    return _link(card, root) if card else None


def _link(card: Path, root: Path) -> Link | None:
    """Find the slowest link on the way from a card up to the processor.

    A Radeon contains a switch, so the card itself reports the fast link inside it. The kernel's
    `pcie_bandwidth_available` goes up the same way. An idle link lowers its speed, so the maximum speed of
    each end counts, with the number of lanes that are in use.
    """
    if read_text(card / "removable") == "removable":
        return Link(3, 4)  # tunnels of Thunderbolt and USB4 report 2.5 GT/s, but carry 32 Gbit/s
    path = card.resolve()
    generation_of_speed = {transfers: generation for generation, (transfers, _) in _GENERATIONS.items()}
    generations, lanes = list[int](), list[int]()
    for folder in (path, *path.parents[: -len(root.resolve().parts)]):
        speed = re.match(r"[\d.]+(?= GT/s)", read_text(folder / "max_link_speed"))
        generation = generation_of_speed.get(float(speed[0])) if speed else None
        width = _number(folder / "current_link_width")
        if generation and width:
            generations.append(generation)
            lanes.append(width)
    return Link(min(generations), min(lanes)) if lanes else None


def _properties(file: Path) -> dict[str, int]:
    return {match[1]: int(match[2]) for match in re.finditer(r"^(\w+) (\d+)$", read_text(file), re.MULTILINE)}


def _number(file: Path) -> int:
    text = read_text(file)
    return int(text) if text.isdigit() else 0


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def card_readings(folder: Path) -> dict[str, float]:
    sensors = (
        ("clock_hz", 1.0, ("freq1_input",)),
        ("power_watts", 1e-6, ("power1_average", "power1_input")),
        ("temperature_celsius", 1e-3, ("temp1_input",)),
    )
    readings: dict[str, float] = {}
    for name, unit, files in sensors:
        values = (_number(file) for sensor in files for file in sorted(folder.glob(f"hwmon/hwmon*/{sensor}")))
        if value := next(filter(None, values), 0):
            readings[name] = value * unit
    return readings


@contextmanager
def readings(
    read: Callable[[], Mapping[str, float]], seconds: float
) -> Generator[Mapping[str, Sequence[float]]]:
    values_by_name = dict[str, list[float]]()
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(seconds):
            for name, value in read().items():
                values_by_name.setdefault(name, []).append(value)

    thread = threading.Thread(target=watch, name="readings", daemon=True)
    thread.start()
    try:
        yield values_by_name
    finally:
        has_ended.set()
        thread.join()


def rocm_version(root: Path = ROOT) -> str:
    """Read the version of ROCm in /opt/rocm; "" without one. Torch does not need that installation."""
    return read_text(root / "opt/rocm/.info/version")


def driver_version(card: str, root: Path = ROOT) -> str:
    """Find the version of the kernel's driver for a card, which is "cuda" or the gfx name of an AMD card.

    A driver without its own version has come with the kernel, and has the kernel's version.
    """
    if card == "cuda":
        match = re.search(r"\d+\.[\d.]+", read_text(root / "proc/driver/nvidia/version"))
        return match[0] if match else ""
    return read_text(root / "sys/module/amdgpu/version") or read_text(root / "proc/sys/kernel/osrelease")


def host_memory(root: Path = ROOT) -> HostMemory:
    """Read the figures of /proc/meminfo within the limits of control groups; zeros without that file."""
    sizes = {
        match[1]: int(match[2]) * _KIB
        for match in re.finditer(r"^(\w+): +(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    }
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    for limit, unused in memory_limits(root):
        total, available = min(total, limit), min(available, unused)
    return HostMemory(total, available, sizes.get("SwapTotal", 0), sizes.get("SwapFree", 0))


_LARGE = 2**30
_CPUINFO = Path("/proc/cpuinfo")
# What oneDNN, with which PyTorch computes on a CPU, needs for bf16: AVX-512, or special instructions
_BF16_FEATURES = ({"avx512bw", "avx512vl", "avx512dq"}, {"avx_ne_convert"}, {"bf16"})


@cache
def computes_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Check whether the processor computes bf16 well, according to the system's list of its features.

    Otherwise PyTorch's products in bf16 are five times, and its convolutions nine times, as slow as in fp32.
    """
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", read_text(cpuinfo), re.MULTILINE)
    features = set(match[1].split()) if match else set[str]()
    return any(required <= features for required in _BF16_FEATURES)


def slow_types(*, is_bf16_kept: bool = False) -> tuple[str, ...]:
    """List the types that a network does not compute in on this processor, because fp32 is faster."""
    return ("float16",) if is_bf16_kept or computes_bf16() else ("float16", "bfloat16")


def keeps_bf16(num_bytes: int, *, is_quantised: bool) -> bool:
    """Decide whether a network computes in bf16 even where fp32 is faster.

    Large ones do, since fp32 would double their memory. Quantised weights become bf16 when they are needed.
    """
    return is_quantised or num_bytes > _LARGE


def resident_bytes(pid: int, root: Path = ROOT, *, kind: str = "VmRSS") -> int:
    match = re.search(rf"{kind}:\s*(\d+)", read_text(root / f"proc/{pid}/status"))
    return int(match[1]) * _KIB if match else 0

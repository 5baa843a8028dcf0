"""The time that a card takes to compute a step, to copy weights and to decode, by others' or own figures.

A step is matrix products, attention, and element-wise work, which only moves memory; the network's shape says
how much of each. The speeds are others' reports of one card of its kind, scaled by the makers' figures for
arithmetic (fp32) and memory. Measured times replace the estimates. Streamed weights cost what the slowest
segment of their path to the card takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from diffusers_helper.machine.local import Facts, Speeds
from diffusers_helper.machine.sysfs import Link
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.models.sizes import Network
from diffusers_helper.planning.profiles import Machine, gfx_family
from diffusers_helper.units import GB, duration

MEASURED, NOT_MEASURED = "measured here", "not measured on a Radeon"
# Passes over a tensor of all tokens in each block: RMS norm with its copies in fp32, RoPE by stack and
# unbind, modulation, GELU and concatenations, counted in diffusers' code for FramePack.
_PASSES = 118
_PASS_BYTES = 2  # of a value in bf16
_LEAST_FLOP = 1e12  # the launches of kernels rule the time of a smaller step
# The latents that a first section decodes in windows, at 640x608 pixels, to which reports of decoding refer
_DECODED, _PIXELS = 13, 640 * 608
# What decoding with Wan 2.2's VAE takes, as a share of HunyuanVideo's: 13.9 s for 31 latent frames of 832x480
# pixels, reported of a PRO R9700 (comfy-kitchen)
_WAN_DECODE = 0.385
# The share of the makers' memory bandwidth that element-wise work reaches; assumed
_REACHED = 0.8
Source = Literal["measured", "from the card's link", "assumed"]
# The share of a link's bytes that copies reach: 28.4 of 31.5 GB/s on an RX 7900 XTX, which a user reported of
# rocm-bandwidth-test (ROCm's issue 2253 on its build).
_LINK_EFFICIENCY = 0.9
# The makers' figures for the cards of a family; those of up to 8 GB have 8 lanes (RX 7600, RX 6600).
_LINKS = {"gfx1200": Link(5, 16)}
_USUAL_LINK, _SMALL_CARD_LINK, _SMALL_CARD_BYTES = Link(4, 16), Link(4, 8), 8 * GB
# A chip that shares the main memory copies within it. The memory of Strix Halo carries 256 GB/s (LPDDR5X-8000
# on 256 bits), and each byte crosses it four times: it is read and written on its way into the ring and out.
_SHARED_MEMORY_SPEED = 256e9 / 4
# The copy from the files' pages to pinned memory, with two channels of DDR4-3200, which carry 51.2 GB/s. Each
# byte crosses them four times: it is read, its place is read and written, and the card reads it there.
_HOST_COPY_SPEED = 51.2e9 / 4


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds with their source: `MEASURED`, or a phrase that names others' figures."""

    seconds: float
    source: str

    @property
    def source_words(self) -> str:
        return self.source if self.source == MEASURED else f"estimate, {self.source}"

    @property
    def words(self) -> str:
        return f"about {duration(self.seconds)} ({self.source_words})"


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step's operations of products and of attention, and the bytes of element-wise work."""

    products: float
    attention: float
    traffic: float

    @property
    def flop(self) -> float:
        return self.products + self.attention


def work_of(network: Network, tokens: Sequence[float], passes: int = 1) -> StepWork:
    config = network.config
    width = config["num_attention_heads"] * config["attention_head_dim"]
    blocks = config["num_layers"] + config.get("num_single_layers", 0)
    # Query, key, value and result, and those of the text for queries and results; and the feed-forward part.
    inner = config["ffn_dim"] if "ffn_dim" in config else config["mlp_ratio"] * width
    num_projections = 6 if "ffn_dim" in config else 4
    factor = blocks * width * passes / len(tokens)
    return StepWork(
        2 * factor * (num_projections * width + 2 * inner) * sum(tokens),
        4 * factor * sum(count**2 for count in tokens),
        _PASSES * _PASS_BYTES * factor * sum(tokens),
    )


@dataclass(frozen=True, slots=True)
class Reported:
    """What was reported of one card.

    Attributes:
        family: The family of cards for which it stands (`profiles.FAMILIES`).
        products, attention: Operations per second in products and in attention with heads of 128 values.
        memory: The bytes per second of element-wise work.
        decode: The seconds to decode the first section of FramePack at 640x608 pixels.
        source: Whose figures these are.
        published: The figures as they were published, in TFLOP/s, and where.
    """

    card: str
    family: str
    products: float
    attention: float
    memory: float
    decode: float
    source: str
    published: str


# The decode, by 2D convolutions (`taps`), is an estimate. For other cards it follows from the products.
_XTX = Reported(
    "RX 7900 XTX", "gfx1100", 90.5e12, 66e12, _REACHED * 960e9, 20, "others' reports of an RX 7900 XTX",
    "82 to 99 (torch-performance-test-data 58, 68, 103); in attention 66, 20 to 25 with an AOTriton of 2024 "
    "(comfy-kitchen 104)",
)  # fmt: skip
_9070 = Reported(
    "RX 9070 XT", "gfx1200", 124.5e12, 49e12, _REACHED * 640e9, 14.5, "others' reports of an RX 9070 XT",
    "116 to 133 (torch-performance-test-data 173); in attention 47 to 51 (aiter 4188)",
)  # fmt: skip
_HALO = Reported(
    "Strix Halo", "gfx1151", 29e12, 16e12, _REACHED * 256e9, 62, "others' reports of a Strix Halo",
    "22 to 36, in attention 12 to 20 (rocm-libraries 8104)",
)  # fmt: skip
# This card has to compute the transformer in fp32, which doubles the memory of element-wise work. Slices of
# attention are assumed to reach a third of the products.
_6600 = Reported(
    "RX 6600 XT", "gfx103x", 8.4e12, 2.7e12, _REACHED * 256e9 / 2, 116,
    "others' reports of an RX 6600 XT, in fp32",
    "8.4 in fp32, 15.6 in fp16 for the decode (torch-performance-test-data 186, 199)",
)  # fmt: skip
# 1.07 to 1.18 s per step, split by the card's limits
_H200 = Reported(
    "H200", "cuda", 790e12, 650e12, 2.1e12, 2.7, "docs/log/gpu.md, measured on an H200",
    "[measured](log/gpu.md)",
)  # fmt: skip
# The split of the time into three parts is assumed.
_4090 = Reported(
    "RTX 4090", "cuda", 165e12, 165e12, 1.46e12, 0, "FramePack's README for an RTX 4090",
    "2.5 s for each of the 36 frames of 25 steps, with decoding (FramePack's README)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Card:
    """A card, with its arithmetic and its memory bandwidth as multiples of those of the reported card.

    Its name is the part of the driver's name that tells it from others of its gfx name and memory; 0 GB is
    any.
    """

    name: str
    arch: str
    gb: int
    reported: Reported
    arithmetic: float = 1.0
    bandwidth: float = 1.0

    @property
    def source(self) -> str:
        scaled = "" if self.name == self.reported.card else f", scaled to the {self.name}"
        return f"{self.reported.source}{scaled}"

    def step(self, work: StepWork) -> Duration:
        reported = self.reported
        computing = work.products / reported.products + work.attention / reported.attention
        moving = work.traffic / (reported.memory * self.bandwidth)
        return Duration(computing / self.arithmetic + moving, self.source)


# By AMD's figures for fp32 (TFLOP/s) and memory (GB/s)
CARDS = (
    Card("RX 7900 XTX", "gfx1100", 24, _XTX),
    Card("RX 7900 XT", "gfx1100", 20, _XTX, 51.6 / 61.4, 800 / 960),
    Card("PRO W7900", "gfx1100", 48, _XTX, 61.3 / 61.4, 864 / 960),
    Card("RX 7800 XT", "gfx1101", 16, _XTX, 37.3 / 61.4, 624 / 960),
    Card("RX 7700 XT", "gfx1101", 12, _XTX, 35.2 / 61.4, 432 / 960),
    Card("RX 7600 XT", "gfx1102", 16, _XTX, 22.6 / 61.4, 288 / 960),
    Card("RX 7600", "gfx1102", 8, _XTX, 21.8 / 61.4, 288 / 960),
    Card("RX 9070 XT", "gfx1201", 16, _9070),
    Card("RX 9070", "gfx1201", 16, _9070, 36.1 / 48.7),
    Card("PRO R9700", "gfx1201", 32, _9070, 47.8 / 48.7),
    Card("RX 9060 XT", "gfx1200", 16, _9070, 25.6 / 48.7, 320 / 640),
    Card("RX 9060 XT", "gfx1200", 8, _9070, 25.6 / 48.7, 320 / 640),
    Card("Strix Halo", "gfx1151", 0, _HALO),
    Card("Radeon 890M", "gfx1150", 0, _HALO, 16 / 40, 120 / 256),
    Card("RX 6900 XT", "gfx1030", 16, _6600, 23.0 / 10.6, 512 / 256),
    Card("RX 6800 XT", "gfx1030", 16, _6600, 20.7 / 10.6, 512 / 256),
    Card("RX 6800", "gfx1030", 16, _6600, 16.2 / 10.6, 512 / 256),
    Card("RX 6700 XT", "gfx1031", 12, _6600, 13.2 / 10.6, 384 / 256),
    Card("RX 6600 XT", "gfx1032", 8, _6600),
    Card("RX 6600", "gfx1032", 8, _6600, 8.9 / 10.6, 224 / 256),
    Card("H200", "", 0, _H200),
    RTX_4090 := Card("RTX 4090", "", 0, _4090),
)


def known_card(machine: Machine) -> Card | None:
    """Find the row of a machine's card; None if it has none.

    The driver often gives no name. Then the slowest card with the same gfx name and memory is taken. If no
    row has these, a discrete card counts as the slowest of its family with its memory.
    """
    family = gfx_family(machine)
    size = round(machine.total_bytes / GB)
    rows = [row for row in CARDS if row.gb in (0, size) and row.reported.family == family]
    named = [row for row in rows if row.name in machine.name]
    if named:
        return max(named, key=lambda row: len(row.name))
    same_arch = [row for row in rows if row.arch and row.arch == machine.arch]
    if not same_arch and machine.kind == "rocm" and not machine.is_apu:
        same_arch = rows
    return min(same_arch, key=lambda row: row.reported.products * row.arithmetic, default=None)


def step_key(machine: Machine, info: ModelInfo) -> str:
    return f"{machine.card}, {info.folder or info.name}"


def keep_times(facts: Facts, key: str, work: StepWork, step_seconds: float, decode_speed: float) -> None:
    """Store what a job's steps and decodes took; `decode_speed` is in latent frames x pixels per second."""
    entry = {"flop_per_second": work.flop / step_seconds, "decode_per_second": decode_speed}
    facts.write(key, {name: round(value) for name, value in entry.items() if value})


def step_time(machine: Machine, work: StepWork, facts: Facts, key: str) -> Duration | None:
    speed = facts.read(key).get("flop_per_second")
    if isinstance(speed, int | float) and speed > 0:
        return Duration(work.flop / speed, MEASURED)
    card = known_card(machine)
    if card is None or work.flop < _LEAST_FLOP:
        return None
    return card.step(work)


def decode_time(machine: Machine, vae: Network, pixels: int, facts: Facts, key: str) -> Duration | None:
    """The time to decode a latent frame of so many pixels; None if it is not known."""
    speed = facts.read(key).get("decode_per_second")
    if isinstance(speed, int | float) and speed > 0:
        return Duration(pixels / speed, MEASURED)
    card = known_card(machine)
    channels = vae.config.get("block_out_channels", (0,))[0]
    work = 1.0 if channels == 128 else _WAN_DECODE if vae.config.get("base_dim") == 160 else None
    if card is None or work is None:
        return None
    seconds = work * card.reported.decode / card.arithmetic * pixels / _PIXELS / _DECODED
    return Duration(seconds, NOT_MEASURED if card.arch else card.source)


@dataclass(frozen=True, slots=True)
class Bus:
    bytes_per_second: float
    name: str
    source: Source

    def reading(self, read_bytes: int, copied_bytes: int) -> Self:
        """Scale a disk's speed, for copies of which only some bytes are read from it."""
        speed = self.bytes_per_second * copied_bytes / read_bytes if read_bytes else math.inf
        return replace(self, bytes_per_second=speed)

    def seconds(self, num_bytes: int) -> float | None:
        return None if self.source == "assumed" else num_bytes / self.bytes_per_second


def disk_of(speed: float | None) -> Bus:
    """Describe a disk of this measured speed; without one, the speed of an SSD on PCIe 3.0 is assumed."""
    return Bus(speed, "the disk", "measured") if speed else Bus(2e9, "the disk", "assumed")


def bus_of(machine: Machine, measured: Speeds = Speeds()) -> Bus | None:  # noqa: B008 - frozen
    if machine.kind == "cpu":
        return None
    if machine.link is not None and not machine.is_apu:
        bus = _bus_over(machine.link)
    elif machine.is_apu:
        bus = Bus(_SHARED_MEMORY_SPEED, "the shared memory", "assumed")
    else:
        is_small = machine.kind == "rocm" and machine.total_bytes <= _SMALL_CARD_BYTES
        usual = _SMALL_CARD_LINK if is_small else _USUAL_LINK
        bus = _bus_over(_LINKS.get(gfx_family(machine), usual), "assumed")
    pinned, plain = measured.host_to_device_pinned_bytes_per_second, measured.host_to_device_bytes_per_second
    if speed := pinned or plain:
        return Bus(speed, "the card's bus" if bus.source == "assumed" else bus.name, "measured")
    return bus


def copies_of(machine: Machine, measured: Speeds, disk: Bus) -> Bus | None:
    """Find the slowest segment of the path of streamed weights: bus, copy within main memory, or disk."""
    bus = bus_of(machine, measured)
    if bus is None:
        return None
    host_speed = measured.host_copy_bytes_per_second
    host = Bus(host_speed or _HOST_COPY_SPEED, "main memory", "measured" if host_speed else "assumed")
    segments = (bus, disk) if machine.is_apu else (bus, host, disk)
    return min(segments, key=lambda segment: segment.bytes_per_second)


def _bus_over(link: Link, source: Source = "from the card's link") -> Bus:
    return Bus(_LINK_EFFICIENCY * link.bytes_per_second, link.name, source)

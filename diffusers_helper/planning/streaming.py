"""What streamed weights cost: the slowest segment of their path to the card."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from diffusers_helper.machine.local import Speeds
from diffusers_helper.machine.sysfs import Link
from diffusers_helper.planning.profiles import Machine, gfx_family
from diffusers_helper.units import GB

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

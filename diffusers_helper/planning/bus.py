"""The way on which streamed weights come to a card, and the time that they take on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from diffusers_helper.machine.local import Speeds
from diffusers_helper.machine.sysfs import Link
from diffusers_helper.planning.profiles import Machine, family_of
from diffusers_helper.units import GB, duration

Source = Literal["measured", "from the card's link", "assumed"]

# The share of a link's bytes that copies reach: 28.4 of 31.5 GB/s on an RX 7900 XTX, which a user reported of
# rocm-bandwidth-test (ROCm's issue 2253 on its build).
_REACHED = 0.9
# The makers' figures for the cards of a family; those of up to 8 GB have 8 lanes (RX 7600, RX 6600).
_LINKS = {"gfx1200": Link(5, 16)}
_USUAL, _SMALL, _SMALL_BYTES = Link(4, 16), Link(4, 8), 8 * GB
# A chip that shares the main memory copies within it. The memory of Strix Halo carries 256 GB/s (LPDDR5X-8000
# on 256 bits), and each byte crosses it four times: it is read and written on its way into the ring and out.
_OWN_MEMORY = 256e9 / 4


@dataclass(frozen=True, slots=True)
class Bus:
    """The way from main memory to a card.

    Attributes:
        name: The name to display, such as "PCIe 4.0 x16".
    """

    bytes_per_second: float
    name: str
    source: Source

    def seconds(self, num_bytes: int) -> float:
        return num_bytes / self.bytes_per_second

    def words(self, num_bytes: int) -> str:
        """Return a phrase for the time that this number of bytes takes, and how that is known."""
        return f"about {duration(self.seconds(num_bytes))} over {self.name} ({self.source})"


def bus_of(machine: Machine, measured: Speeds = Speeds()) -> Bus | None:  # noqa: B008 - frozen
    """Return the way to a machine's card, with the best known speed; None without a card.

    Args:
        machine: The machine, whose link the kernel may have told.
    """
    if machine.kind == "cpu":
        return None
    known = _guess(machine) if machine.link is None or machine.is_apu else _through(machine.link)
    pinned, plain = measured.host_to_device_pinned_bytes_per_second, measured.host_to_device_bytes_per_second
    if speed := pinned or plain:
        return Bus(speed, "the card's bus" if known.source == "assumed" else known.name, "measured")
    return known


def _through(link: Link, source: Source = "from the card's link") -> Bus:
    return Bus(_REACHED * link.bytes_per_second, link.name, source)


def _guess(machine: Machine) -> Bus:
    if machine.is_apu:
        return Bus(_OWN_MEMORY, "the shared memory", "assumed")
    family = family_of(machine)
    if family in _LINKS:
        return _through(_LINKS[family], "assumed")
    is_small = machine.kind == "rocm" and machine.total_bytes <= _SMALL_BYTES
    return _through(_SMALL if is_small else _USUAL, "assumed")

"""The speeds of bus and disk that a benchmark measured on this machine, by card, for the plans."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from diffusers_helper.machine.facts import Facts

_MOST = 1e13  # bytes per second; more is a mistake


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured speeds in bytes per second; None for those that were not measured.

    Attributes:
        host_to_device_pinned_bytes_per_second: Copies from pinned main memory to the card, which is how
            weights are streamed.
        host_to_device_bytes_per_second: Copies from other main memory.
        disk_read_bytes_per_second: Reads of a large file that bypass the page cache.
    """

    host_to_device_pinned_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    disk_read_bytes_per_second: float | None = None


def keep_speeds(facts: Facts, card: str, measured: Speeds) -> None:
    """Store measured speeds. Those that are None keep the value that is stored.

    Args:
        facts: The store (`Local.speeds`).
        card: The card (`Machine.card`).
        measured: The speeds.
    """
    found = {name: round(value) for name, value in asdict(measured).items() if value is not None}
    facts.write(card, {**facts.read(card), **found})


def speeds(facts: Facts, card: str) -> Speeds:
    """Return the stored speeds of a machine with this card; None for what is missing or of no use."""
    entry = facts.read(card)
    return Speeds(**{field.name: _speed(entry.get(field.name)) for field in fields(Speeds)})


def _speed(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < _MOST else None

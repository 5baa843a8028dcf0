"""The settings of a machine, which a program passes to the library, and the stores of facts about it.

The library does not read the environment. Facts are determined once and kept in small JSON files, one entry
per key: the speeds of bus and disks, the kernel of attention that SDPA runs, and the fastest way to compute
attention of each shape.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from diffusers_helper.attention.ways import NATIVE, SLICED, WAYS
from diffusers_helper.files import write_atomic
from diffusers_helper.machine.packages import version_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts in one file. Without a file nothing is stored; a missing or damaged file counts as empty."""

    file: Path | None = None

    def read(self, key: str) -> dict[str, Any]:
        """Return the entry for a key, or an empty dict if there is none."""
        entry = self._all().get(key)
        return cast(dict[str, Any], entry) if isinstance(entry, dict) else {}

    def write(self, key: str, entry: dict[str, Any]) -> None:
        """Add facts to the entry for a key. If the file cannot be written, log a warning."""
        if self.file is None:
            return
        entries = {**self._all(), key: {**self.read(key), **entry}}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, json.dumps(entries, indent=1).encode() + b"\n")
        except OSError as error:
            _log.warning("%s cannot be written (%s)", self.file, error)

    def forget(self) -> int:
        """Remove the file, and return the number of entries that it had."""
        count = len(self._all())
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        return count

    def _all(self) -> dict[str, Any]:
        if self.file is None:
            return {}
        try:
            entries = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return cast(dict[str, Any], entries) if isinstance(entries, dict) else {}


class _Kept:
    """A descriptor for a store of facts in a machine's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, local: Local, kind: type[Local]) -> Facts:
        return Facts(local.folder and local.folder / self._name)


@dataclass(frozen=True, slots=True)
class Local:
    """The settings of a machine, as opposed to those of a job.

    Attributes:
        environ: The environment variables, of which `planning.profiles` reads some.
        folder: The folder for this machine's measurements and the levels of smaller plans; None for neither.
        is_guest: Whether the process belongs to another program, whose limits stay as they are.
        try_attention: A function that tries ways to compute attention in a process of its own, given their
            names and the other arguments of `attention.attending.try_ways`, and returns what that yields;
            None if nothing is tried.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None
    is_guest: bool = False
    try_attention: Callable[..., list[dict[str, Any]]] | None = None

    learned = _Kept("smaller_plans.json")  # the levels of jobs after shortages (`planning.ladder`)
    tile_times = _Kept("tile_times.json")  # what decodes took with tiles of each size (`job.plans`)
    kernels = _Kept("attention.json")  # what was seen of attention
    step_times = _Kept("step_times.json")  # what steps and decodes took (`planning.cards.speeds`)
    disks = _Kept("disks.json")  # the speeds of disks
    speeds = _Kept("speeds.json")  # those that benchmarks and jobs measured
    calibration = _Kept("calibration.json")  # ratios of measured to estimated memory (`planning.estimates`)

    @property
    def encodings(self) -> Path | None:
        return self.folder and self.folder / "encodings"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured speeds; None for those that were not measured.

    Weights that are streamed are copied within main memory, into a pinned buffer, and from there to the card.
    """

    host_to_device_pinned_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    disk_read_bytes_per_second: float | None = None
    host_copy_bytes_per_second: float | None = None


def keep_speeds(facts: Facts, card: str, measured: Speeds) -> None:
    """Store the measured speeds of a card. Those that are None keep the value that is stored."""
    found = {name: round(value) for name, value in asdict(measured).items() if value is not None}
    facts.write(card, found)


def speeds(facts: Facts, card: str) -> Speeds:
    """Return the stored speeds of a machine with this card; None for what is missing or of no use."""
    entry = facts.read(card)
    return Speeds(**{field.name: entry.get(field.name) for field in fields(Speeds)})


_SAMPLE_BYTES, _BLOCK_BYTES = 256 * 1024**2, 8 * 1024**2
_SECONDS = 2.0


def disk_speed(file: Path, seconds: float = _SECONDS) -> float | None:
    """Return the bytes per second of reads that bypass the page cache; None if these are impossible."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECT", 0)
    if flags == os.O_RDONLY:
        return None
    try:
        descriptor = os.open(file, flags)
    except OSError:
        return None
    # Direct reads need an aligned buffer, which a map of memory is.
    with mmap.mmap(-1, _BLOCK_BYTES) as buffer:
        begin, count = time.perf_counter(), 0
        try:
            while count < _SAMPLE_BYTES and (got := os.readv(descriptor, [buffer])):
                count += got
                if time.perf_counter() - begin > seconds:
                    break
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return count / max(time.perf_counter() - begin, 1e-9) if count else None


@dataclass(frozen=True)
class DiskSpeeds:
    """The speeds of the disks in bytes per second, by the folder of the weights. Any thread may use it."""

    facts: Facts
    _threads: dict[Path, threading.Thread] = field(
        default_factory=dict[Path, threading.Thread], init=False, repr=False
    )

    def _known(self, file: Path | None) -> float | None:
        if file is None:
            return None
        return self.facts.read(str(file.parent)).get("bytes_per_second")

    def measure(self, file: Path | None) -> float | None:
        """Return the speed of the disk with this file, if there is one, and measure it if it is not known."""
        if (known := self._known(file)) is not None or file is None:
            return known
        speed = disk_speed(file)
        if speed is not None:
            self.facts.write(str(file.parent), {"bytes_per_second": round(speed)})
        return speed

    def ask(self, file: Path | None) -> float | None:
        """Return the speed if it is known. Otherwise return None, and measure it once in a thread."""
        if (known := self._known(file)) is not None or file is None:
            return known
        thread = threading.Thread(target=self.measure, args=(file,), name="disk", daemon=True)
        if self._threads.setdefault(file.parent, thread) is thread:
            thread.start()
        return None


_TOKENS = 1024  # Shapes whose numbers of tokens differ by less share an entry.
# Another way than the preferred one has to be faster by this factor, so that noise does not decide.
_GAIN = 1.1


def seen_kernel(facts: Facts, card: str) -> str:
    """Return the stored attention kernel of a card with the installed torch, or "" if there is none."""
    return facts.read(_key(card)).get("kernel", "")


def keep_kernel(facts: Facts, card: str, torch_version: str, kernel: str) -> None:
    """Store the attention kernel that SDPA ran on a card with a version of torch."""
    facts.write(_key(card, torch_version), {"kernel": kernel})


def seen_ways(facts: Facts, card: str) -> dict[str, str]:
    """Return the stored ways to compute attention on a card with the installed torch, by `shape_key`."""
    ways = facts.read(_key(card)).get("ways", {})
    return {key: way for key, way in ways.items() if way in WAYS}


def keep_trial(facts: Facts, card: str, key: str, found: Sequence[Mapping[str, Any]]) -> str:
    """Store and return the fastest way to compute attention of one shape, and store the kernel of SDPA.

    A way that stores the scores of all tokens does not count, since attention in slices does the same work.

    Args:
        found: The results of `attention.attending.try_ways`, in the order of preference.
    """
    good = {one["way"]: one for one in found if "failed" not in one and "math" not in one["kernel"]}
    most = min((one["seconds"] for one in good.values()), default=0.0) * _GAIN
    way = next((name for name, one in good.items() if one["seconds"] <= most), SLICED)
    for one in found:
        _log.info("attention of %s: %s", key, ", ".join(f"{name} {value}" for name, value in one.items()))
        if one["way"] == NATIVE and "kernel" in one:
            keep_kernel(facts, card, version_of("torch"), one["kernel"])
    facts.write(_key(card), {"ways": {**seen_ways(facts, card), key: way}})
    return way


def shape_key(heads: int, tokens: int, head_dim: int, dtype: str) -> str:
    """Return the key of a shape of attention."""
    return f"{heads} heads of {head_dim}, up to {-(-tokens // _TOKENS) * _TOKENS} tokens, {dtype}"


def _key(card: str, torch_version: str = "") -> str:
    """Return the key of a card with a version of torch; "" for the installed one."""
    return f"{card}, torch {torch_version or version_of('torch')}"

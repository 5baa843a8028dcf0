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
from math import inf
from pathlib import Path
from typing import Any, cast

from diffusers_helper.attention.ways import NATIVE, SLICED, WAYS
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.files import write_atomic
from diffusers_helper.machine.packages import version_of
from diffusers_helper.machine.sysfs import driver_version

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
        measure_convolutions: A function that measures convolutions in a process of its own, as
            `cache.conv_tuning.measure_in_processes` asks it to; None if nothing is measured.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None
    is_guest: bool = False
    try_attention: Callable[..., list[dict[str, Any]]] | None = None
    measure_convolutions: Callable[..., str] | None = None

    learned = _Kept("smaller_plans.json")  # levels of jobs that ran out of memory
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
DEVIATION_VARIABLE = "LONGTAKE_ATTENTION_DEVIATION"
_DEVIATION, _MOST_DEVIATION = 1.0, 10.0  # percent; rounding to bf16 gives 0.2 to 0.4, and 8 bits 1.4 to 1.5
_FP32_SHARE = 0.1  # of the bound, where a model computes in fp32


def seen_kernel(facts: Facts, card: str) -> str:
    """Return the stored attention kernel of a card with the installed torch, or "" if there is none."""
    return facts.read(_key(card)).get("kernel", "")


def keep_kernel(facts: Facts, card: str, torch_version: str, kernel: str) -> None:
    """Store the attention kernel that SDPA ran on a card with a version of torch."""
    facts.write(_key(card, torch_version), {"kernel": kernel})


Trial = Mapping[str, Mapping[str, Any]]
"""What `attention.attending.try_ways` has yielded for one shape, by way."""


def deviation_of(environ: Mapping[str, str]) -> float:
    """Return the share by which the results of a way may differ from fp32 math, if `auto` is to take it.

    Raises:
        InputError: If the environment has an invalid value.
    """
    text = environ.get(DEVIATION_VARIABLE) or str(_DEVIATION)
    try:
        percent = float(text)
    except ValueError:
        percent = inf
    if not 0 < percent <= _MOST_DEVIATION:
        raise InputError(
            f"{DEVIATION_VARIABLE} is {short_repr(text[:60])}; expected percent, above 0 and at most "
            f"{_MOST_DEVIATION:g}.",
            "Correct it, or leave it out.",
        )
    return percent / 100


def seen_trials(facts: Facts, card: str) -> dict[str, Trial]:
    """Return the stored trials on a card with its present driver and software, by `shape_key`."""
    return facts.read(_trials_key(card))


def keep_trial(facts: Facts, card: str, key: str, found: Sequence[Mapping[str, Any]]) -> Trial:
    """Store the lasting results of a trial of one shape, and return all that are known, with the others.

    Args:
        found: The results of `attention.attending.try_ways`. Those that say `passes`, such as a lack of
            memory, are not stored, so that these ways are tried again in the next job.
    """
    for one in found:
        _log.info("attention of %s: %s", key, ", ".join(f"{name} {value}" for name, value in one.items()))
        if one["way"] == NATIVE and "kernel" in one:
            keep_kernel(facts, card, version_of("torch"), one["kernel"])
    known = seen_trials(facts, card).get(key, {})
    lasting = {one["way"]: one for one in found if not one.get("passes")}
    if lasting:
        facts.write(_trials_key(card), {key: {**known, **lasting}})
    return {**known, **{one["way"]: one for one in found}}


def seen_ways(facts: Facts, card: str, deviation: float) -> dict[str, str]:
    """Return the way that `auto` takes on a card, by `shape_key`; see `deviation_of`."""
    return {key: fastest(key, trial, deviation) for key, trial in seen_trials(facts, card).items()}


def fastest(key: str, trial: Trial, deviation: float) -> str:
    """Return the fastest way of a trial whose results are close enough to fp32 math, or else slices.

    A way that stores the scores of all tokens does not count, since attention in slices does the same work.
    """
    good = {
        way: trial[way]["seconds"]
        for way in WAYS
        if way in trial
        and "failed" not in trial[way]
        and "math" not in trial[way]["kernel"]
        and trial[way]["error"] <= _bound(key, deviation)
    }
    most = min(good.values(), default=0.0) * _GAIN
    return next((way for way, seconds in good.items() if seconds <= most), SLICED)


def refused_ways(facts: Facts, card: str, deviation: float) -> dict[str, float]:
    """Return the ways that `auto` leaves out for their deviation from fp32 math, with the largest one."""
    found = dict[str, float]()
    for key, trial in seen_trials(facts, card).items():
        for way in WAYS.keys() & trial.keys():
            if (error := trial[way].get("error", 0.0)) > _bound(key, deviation):
                found[way] = max(error, found.get(way, 0.0))
    return found


def _bound(key: str, deviation: float) -> float:
    return deviation * (_FP32_SHARE if key.endswith("float32") else 1)


def shape_key(heads: int, tokens: int, head_dim: int, dtype: str) -> str:
    """Return the key of a shape of attention."""
    return f"{heads} heads of {head_dim}, up to {-(-tokens // _TOKENS) * _TOKENS} tokens, {dtype}"


def _key(card: str, torch_version: str = "") -> str:
    """Return the key of a card with a version of torch; "" for the installed one."""
    return f"{card}, torch {torch_version or version_of('torch')}"


def _trials_key(card: str) -> str:
    """Return the key of a card with all software that the speed of attention depends on."""
    packages = sorted({way.package for way in WAYS.values() if way.package})
    versions = (f"{name} {version_of(name)}".rstrip() for name in packages)
    return ", ".join((_key(card), *versions, f"driver {driver_version(card)}"))

"""The settings of a machine, which a program passes to the library, and the stores of facts about it.

The library does not read the environment. Facts are determined once and kept in small JSON files, one entry
per key, such as the speeds of bus and disks. What trials of kernels find is in `machine.routes`.
"""

import json
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, cast

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.machine.packages import version_of
from diffusers_helper.machine.routes import ROUTES, RouteStore, fastest
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts in one file. Without a file nothing is stored; a missing or damaged file counts as empty."""

    file: Path | None = None

    def read(self, key: str) -> dict[str, Any]:
        entry = self.all().get(key)
        return cast(dict[str, Any], entry) if isinstance(entry, dict) else {}

    def write(self, key: str, entry: dict[str, Any]) -> None:
        self.write_all({**self.all(), key: {**self.read(key), **entry}})

    def write_all(self, entries: Mapping[str, Any]) -> None:
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, json.dumps(dict(entries), indent=1).encode() + b"\n")
        except OSError as error:
            _log.warning("%s cannot be written (%s)", self.file, error)

    def forget(self) -> int:
        count = len(self.all())
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        return count

    def all(self) -> dict[str, Any]:
        try:
            entries: Any = plain_json(read_file(self.file)) if self.file else {}
        except (OSError, ValueError):
            return {}
        return cast(dict[str, Any], entries) if isinstance(entries, dict) else {}


class _FactsFile:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, local: "Local", kind: "type[Local]") -> Facts:
        return Facts(local.folder and local.folder / self._name)


@dataclass(frozen=True, slots=True)
class Local:
    """The settings of a machine, as opposed to those of a job.

    As a guest, the process belongs to another program, whose limits stay. `try_candidates` is that of
    `app.trials`, which tries kernels in processes of their own.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path | None = None
    is_guest: bool = False
    try_candidates: Callable[..., bool] | None = None

    smaller_plans = _FactsFile("smaller_plans.json")  # the levels of jobs that ran out of memory
    kernels = _FactsFile("attention.json")  # the kernel that SDPA runs
    step_times = _FactsFile("step_times.json")  # the times of steps and decodes (`planning.cards.speeds`)
    disks = _FactsFile("disks.json")  # the speeds of disks
    speeds = _FactsFile("speeds.json")  # those that benchmarks and jobs measured
    calibration = _FactsFile("calibration.json")  # ratios of measured to estimated memory

    @property
    def routes(self) -> RouteStore:
        return RouteStore(self.folder and self.folder / ROUTES)

    @property
    def encodings(self) -> Path | None:
        return self.folder and self.folder / "encodings"


@dataclass(frozen=True, slots=True)
class Speeds:
    host_to_device_pinned_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    disk_read_bytes_per_second: float | None = None
    host_copy_bytes_per_second: float | None = None


def store_speeds(facts: Facts, card: str, measured: Speeds) -> None:
    facts.write(card, {name: round(value) for name, value in asdict(measured).items() if value is not None})


def speeds(facts: Facts, card: str) -> Speeds:
    entry = facts.read(card)
    return Speeds(**{field.name: entry.get(field.name) for field in fields(Speeds)})


_SAMPLE_BYTES, _BLOCK_BYTES = 256 * 1024**2, 8 * 1024**2
_SECONDS = 2.0


def disk_speed(file: Path, seconds: float = _SECONDS) -> float | None:
    """Measure the bytes per second of reads that bypass the page cache; None if these are impossible."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECT", 0)
    if flags == os.O_RDONLY:
        return None
    try:
        descriptor = os.open(file, flags)
    except OSError:
        return None
    # Direct reads need an aligned buffer, which a map of memory is.
    with mmap.mmap(-1, _BLOCK_BYTES) as buffer:
        start_time = time.perf_counter()
        num_bytes = 0
        try:
            while num_bytes < _SAMPLE_BYTES and (num_read := os.readv(descriptor, [buffer])):
                num_bytes += num_read
                if time.perf_counter() - start_time > seconds:
                    break
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return num_bytes / max(time.perf_counter() - start_time, 1e-9) if num_bytes else None


@dataclass(frozen=True)
class DiskSpeeds:
    """The speeds of the disks in bytes per second, by the folder of the weights. Any thread may use it."""

    facts: Facts
    _threads: dict[Path, threading.Thread] = field(
        default_factory=dict[Path, threading.Thread], init=False, repr=False
    )

    def _stored_speed(self, file: Path | None) -> float | None:
        return self.facts.read(str(file.parent)).get("bytes_per_second") if file else None

    def measure(self, file: Path | None) -> float | None:
        if (stored_speed := self._stored_speed(file)) is not None or file is None:
            return stored_speed
        speed = disk_speed(file)
        if speed is not None:
            self.facts.write(str(file.parent), {"bytes_per_second": round(speed)})
        return speed

    def ask(self, file: Path | None) -> float | None:
        """Get the speed if it is known. Otherwise return None, and measure it once in a thread."""
        if (stored_speed := self._stored_speed(file)) is not None or file is None:
            return stored_speed
        thread = threading.Thread(target=self.measure, args=(file,), name="disk", daemon=True)
        if self._threads.setdefault(file.parent, thread) is thread:
            thread.start()
        return None


_TOKENS = 1024  # Shapes whose numbers of tokens differ by less share an entry.
DEVIATION_VARIABLE = "LONGTAKE_ATTENTION_DEVIATION"
_DEVIATION, _MAX_DEVIATION = 1.0, 10.0  # percent; rounding to bf16 gives 0.2 to 0.4, and 8 bits 1.4 to 1.5
_FP32_SHARE = 0.1  # of the bound, where a model computes in fp32


def stored_kernel(facts: Facts, card: str) -> str:
    return facts.read(_key(card)).get("kernel", "")


def store_kernel(facts: Facts, card: str, torch_version: str, kernel: str) -> None:
    facts.write(_key(card, torch_version), {"kernel": kernel})


def _key(card: str, torch_version: str = "") -> str:
    return f"{card}, torch {torch_version or version_of('torch')}"


def deviation_of(environ: Mapping[str, str]) -> float:
    """Read by what share a way's results may differ from fp32 math, if `auto` is to take it."""
    text = environ.get(DEVIATION_VARIABLE) or str(_DEVIATION)
    try:
        percent = float(text)
    except ValueError:
        percent = inf
    if not 0 < percent <= _MAX_DEVIATION:
        raise InputError(
            f"{DEVIATION_VARIABLE} is {short_repr(text[:60])}; expected percent, above 0 and at most "
            f"{_MAX_DEVIATION:g}.",
            "Correct it, or leave it out.",
        )
    return percent / 100


def max_error(shape: str, deviation: float) -> float:
    return deviation * (_FP32_SHARE if shape.endswith("float32") else 1)


def fastest_by_shape(local: Local, operation: str, card: str, deviation: float) -> dict[str, str]:
    return {
        shape: fastest(operation, route, max_error(shape, deviation))
        for shape, route in local.routes.trials(operation, card).items()
    }


def shape_key(heads: int, tokens: int, head_dim: int, dtype: str) -> str:
    return f"{heads} heads of {head_dim}, up to {-(-tokens // _TOKENS) * _TOKENS} tokens, {dtype}"


def blocks_key(shape: tuple[int, int, int, str], *, spans_heads: bool) -> str:
    return f"{'norms of all heads, ' * spans_heads}{shape_key(*shape)}"

"""The store of the ways that operations take on a card, with reasons: a JSON file per card and operation.

An operation is a convolution, attention, the products of a transformer's blocks, or their other work. What
trials measure and what fails in jobs is kept under the versions of card, driver and packages. If the folder
cannot be written, new routes are only kept until the process ends.
"""

import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Protocol

from diffusers_helper.attention.backends import BACKENDS, BLOCKS, LIBRARIES, PLAIN, SLICED, TORCHS_CHOICE
from diffusers_helper.files import read_file, set_aside, write_atomic
from diffusers_helper.machine.file_locks import take_lock
from diffusers_helper.machine.packages import version_of
from diffusers_helper.machine.sysfs import driver_version

_log = logging.getLogger(__name__)

ROUTES = "conv_routes"  # the folder in the cache of Longtake
VERSION = 1
MAX_ROUTES = 2000  # per file
MAX_REASON = 300  # characters
TRYING = "the process ended while this was being measured"

ATTENTION, BLOCK_WORK, BLAS, CONVOLUTION = "attention", "blocks", "blas", "convolution"
CONV_RUNGS = ("kitchen", "miopen", "channels", "taps", "native", "tiles", "cpu")  # `cache.conv_rungs.RUNGS`
# The ways to compute each operation, in the order of preference, and the one that needs no trial.
CANDIDATES: Mapping[str, tuple[Sequence[str], str]] = {
    ATTENTION: ((*BACKENDS,), SLICED), BLOCK_WORK: ((*BLOCKS,), PLAIN),
    BLAS: (LIBRARIES["rocm"], TORCHS_CHOICE), CONVOLUTION: (CONV_RUNGS, ""),
}  # fmt: skip
# Another way than the preferred one has to be faster by this factor, so that noise does not decide.
_MIN_GAIN = 1.1

Result = Mapping[str, Any]
"""What a trial found for one candidate: `milliseconds`, `error` and `bytes`, or why it `failed`."""


class Case(Protocol):
    """What an operation computes, on which card, with which software; `table` names the file."""

    @property
    def operation(self) -> str: ...

    @property
    def table(self) -> str: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class KernelCase:
    operation: str
    card: str
    shape: str

    @property
    def table(self) -> str:
        return f"{self.operation} {self.card}"

    def __str__(self) -> str:
        return f"{_software(self.card)}: {self.shape}"


def _software(card: str) -> str:
    packages = ["torch", *sorted({backend.package for backend in BACKENDS.values() if backend.package})]
    versions = (f"{name} {version_of(name)}".rstrip() for name in packages)
    return ", ".join((*versions, f"driver {driver_version(card)}"))


@dataclass(frozen=True, slots=True)
class Route:
    """What is stored about one case: the way to try first, and those that were measured or failed.

    `failed` ways raised an error or gave a wrong result; `deadly` ones ended or halted the process, so only
    `tune --again` tries them. `measured` has milliseconds, and `errors` the differences from fp32 math, and
    `peaks` bytes.
    """

    rung: str = ""
    reason: str = ""
    when: str = ""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    deadly: dict[str, str] = field(default_factory=dict[str, str])
    measured: dict[str, float] = field(default_factory=dict[str, float])
    errors: dict[str, float] = field(default_factory=dict[str, float])
    peaks: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_measured(self) -> bool:
        return bool(self.measured or self.reason.startswith("measured"))

    @property
    def candidates(self) -> set[str]:
        return {*self.measured, *self.failed, *self.deadly}

    def with_result(self, operation: str, candidate: str, result: Result) -> "Route":
        values = {name: dict[str, Any](getattr(self, name)) for name in _BY_WAY}
        for by_way in values.values():
            by_way.pop(candidate, None)
        if reason := result.get("failed"):
            values["deadly" if result.get("is_deadly") else "failed"][candidate] = shorten(reason)
        else:
            values["measured"][candidate] = round(result["milliseconds"], 4)
            values["errors"][candidate] = float(f"{result['error']:.3g}")
            values["peaks"] |= {candidate: result["bytes"]} if result["bytes"] else {}
        route = replace(self, **values)
        times = ", ".join(f"{name} {value:.3g} ms" for name, value in route.measured.items())
        failures = "".join(f"; {name}: {text}" for name, text in {**route.failed, **route.deadly}.items())
        reason = shorten(f"measured {times or 'nothing'}{failures}")
        # The other choices also depend on the errors that a person accepts.
        return replace(route, rung=fastest(operation, route) * (operation == CONVOLUTION), reason=reason)


_BY_WAY = ("failed", "deadly", "measured", "errors", "peaks")


@dataclass(frozen=True, slots=True)
class Task:
    """The ways to try for a case; `arguments` are those of the work (`app.probe`)."""

    case: Case
    arguments: Sequence[Any]
    candidates: Sequence[str]


def fastest(operation: str, route: Route, max_error: float = inf) -> str:
    """Find the fastest way whose results differ no more from fp32 math, or else the sure one."""
    candidates, sure_way = CANDIDATES[operation]
    milliseconds = {
        candidate: route.measured[candidate]
        for candidate in candidates
        if candidate in route.measured and route.errors.get(candidate, 0.0) <= max_error
    }
    longest = min(milliseconds.values(), default=0.0) * _MIN_GAIN
    return next((candidate for candidate, value in milliseconds.items() if value <= longest), sure_way)


def shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"


class RouteStore:
    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._tables: dict[str, dict[str, Route]] = {}
        self._is_writable = folder is not None

    def get(self, case: Case) -> Route:
        return self.routes(case.table).get(str(case), Route())

    def reload(self) -> None:
        """Read the files again when a route is asked for next, since another process has changed them."""
        with self._lock:
            if self._is_writable:
                self._tables.clear()

    def routes(self, table: str) -> dict[str, Route]:
        with self._lock:
            return dict(self._table(table))

    def trials(self, operation: str, card: str) -> dict[str, Route]:
        """Read the routes of `KernelCase`s on a card with its present driver and software, by shape."""
        prefix = str(KernelCase(operation, card, ""))
        stored = self.routes(KernelCase(operation, card, "").table)
        return {
            text.removeprefix(prefix): route
            for text, route in stored.items()
            if text.startswith(prefix) and route.candidates
        }

    def choose(self, case: Case, rung: str, reason: str) -> None:
        def change(route: Route) -> Route:
            failed = {name: text for name, text in route.failed.items() if name != rung}
            return replace(route, rung=rung, reason=shorten(reason), failed=failed)

        self._change(case, change)

    def add_failure(self, case: Case, rung: str, reason: str) -> None:
        """Record a recognised error. The rung is skipped for this case until it is measured again."""
        self._change(case, lambda route: replace(route, failed={**route.failed, rung: shorten(reason)}))

    def block(self, case: Case, rung: str, reason: str) -> None:
        def change(route: Route) -> Route:
            changed = replace(route, rung="", reason="") if route.rung == rung else route
            return replace(changed, deadly={**route.deadly, rung: shorten(reason)})

        self._change(case, change)

    @contextlib.contextmanager
    def trying(self, case: Case, candidate: str) -> Generator[list[Result]]:
        """Block a way, also if this program ends within the context, which may append a result to store."""
        previous = self.get(case)
        results = list[Result]()
        self.block(case, candidate, TRYING)
        try:
            yield results
        finally:
            for result in results:
                previous = previous.with_result(case.operation, candidate, result)
            self._change(case, lambda _: previous)

    # ---- files --------------------------------------------------------------------------------------------

    def _table(self, name: str) -> dict[str, Route]:
        if name not in self._tables:
            file = self._file(name)
            self._tables[name] = {} if file is None else _read(file)
        return self._tables[name]

    def _file(self, table: str) -> Path | None:
        name = re.sub(r"[^\w.-]", "_", table)
        return None if self.folder is None else self.folder / f"{name}.json"

    def _change(self, case: Case, change: Callable[[Route], Route]) -> None:
        """Apply a change to the route on the disk, which another process may have changed meanwhile."""
        file = self._file(case.table)
        with self._lock:
            if file is not None and self._is_writable:
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    # The lock is on a file of its own, since `file` is replaced.
                    with file.with_name(f".{file.name}.lock").open("ab") as lock:
                        take_lock(lock, waits=True)
                        self._tables[case.table] = _read(file)
                        _apply(self._tables[case.table], str(case), change)
                        _write(file, self._tables[case.table])
                except OSError as error:
                    self._is_writable = False
                    _log.warning(
                        "%s cannot be written (%s); decisions about kernels last until the end of this "
                        "process", file, error.strerror or error,
                    )  # fmt: skip
                else:
                    return
            _apply(self._table(case.table), str(case), change)


def _apply(table: dict[str, Route], key: str, change: Callable[[Route], Route]) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    route = change(table.pop(key, Route()))
    if route != Route():
        table[key] = replace(route, when=now)
    if len(table) > MAX_ROUTES:
        # The oldest routes are deleted first, and those with a blocked rung last.
        deletable = sorted(table, key=lambda name: (bool(table[name].deadly), table[name].when))
        for name in deletable[: len(table) - MAX_ROUTES]:
            del table[name]


def _read(file: Path) -> dict[str, Route]:
    table: dict[str, Route] = {}
    try:
        content = json.loads(read_file(file))
        if content["version"] != VERSION:
            raise ValueError(content["version"])
        for key, fields in content["routes"].items():
            table[key] = route = Route(**fields)
            texts = (route.rung, route.reason, route.when, *route.failed.values(), *route.deadly.values())
            numbers = (*route.measured.values(), *route.errors.values(), *route.peaks.values())
            if {*map(type, texts)} != {str} or not {*map(type, numbers)} <= {int, float}:
                raise TypeError(key)
    except FileNotFoundError:
        return {}
    except OSError as error:
        _log.warning("%s cannot be read (%s); starting without it", file, error.strerror or error)
        return {}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        with contextlib.suppress(OSError):
            set_aside(file)
        return {}
    return table


def _write(file: Path, table: dict[str, Route]) -> None:
    routes = {
        key: {name: value for name, value in asdict(route).items() if value} for key, route in table.items()
    }
    data = json.dumps({"version": VERSION, "routes": routes}, indent=1, ensure_ascii=False)
    write_atomic(file, data.encode() + b"\n")

"""The store of the rungs that convolutions take on a card, with reasons, in one JSON file per architecture.

If the folder cannot be written, new routes are only kept until the process ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from diffusers_helper.files import read_file, set_aside, write_atomic
from diffusers_helper.machine.file_locks import take_lock

_log = logging.getLogger(__name__)

VERSION = 1
MAX_ROUTES = 2000  # per file
SUSPECT_DEATHS = 2  # on one card with the same software, after which their rungs are suspected at any case
MAX_REASON = 300  # characters
TRYING = "the process ended while this was being measured"


@dataclass(frozen=True, slots=True)
class ConvCase:
    """A convolution on a card, with everything that the choice of a rung may depend on.

    The input is (B, C, T, H, W) and the weight (O, C / groups, kT, kH, kW). A flat one has a single frame.
    """

    arch: str
    rocm: str
    torch: str
    dtype: str
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    is_flat: bool = False

    def __str__(self) -> str:
        """Write the case as one line, which `from_text` can parse and which is its key in the file."""
        sizes = (self.shape, self.weight, self.stride, self.padding, self.dilation)
        names = ("x", "w", "stride", "pad", "dilation")
        pairs = zip(names, sizes, strict=True)
        shapes = " ".join(f"{name}={'x'.join(map(str, size))}" for name, size in pairs)
        prefix = f"{self.arch} rocm={self.rocm} torch={self.torch} {self.dtype}"
        return f"{prefix} {shapes} groups={self.groups}{_FLAT if self.is_flat else ''}"

    @property
    def software(self) -> tuple[str, str]:
        return self.rocm, self.torch

    @classmethod
    def from_text(cls, text: str) -> ConvCase:
        match = _CASE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:200]!r} names no convolution; expected a text like {_EXAMPLE!r}.")
        arch, rocm, torch, dtype, *texts, groups, flat = match.groups()
        shape, weight, stride, padding, dilation = (tuple(map(int, text.split("x"))) for text in texts)
        is_flat = flat is not None
        return cls(arch, rocm, torch, dtype, shape, weight, stride, padding, dilation, int(groups), is_flat)


_FLAT = " conv2d"
_SIZES_5, _SIZES_3 = r"(\d+(?:x\d+){4})", r"(\d+(?:x\d+){2})"
_CASE = re.compile(
    rf"([\w.-]+) rocm=(\S+) torch=(\S+) (\w+) x={_SIZES_5} w={_SIZES_5} "
    rf"stride={_SIZES_3} pad={_SIZES_3} dilation={_SIZES_3} groups=(\d+)({_FLAT})?"
)
_EXAMPLE = (
    "gfx1100 rocm=7.2 torch=2.13.0 float16 x=1x16x5x64x64 w=16x16x3x3x3 "
    "stride=1x1x1 pad=0x0x0 dilation=1x1x1 groups=1"
)


@dataclass(frozen=True, slots=True)
class Route:
    """What is stored about one case: the rung to try first, and those that were measured or failed.

    `failed` rungs raised a recognised error; `deadly` ones ended the process, so only `tune --again` tries
    them.
    """

    rung: str = ""
    reason: str = ""
    when: str = ""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    deadly: dict[str, str] = field(default_factory=dict[str, str])
    measured: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def is_measured(self) -> bool:
        return bool(self.measured or self.reason.startswith("measured"))


def shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"


class RouteStore:
    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._tables: dict[str, dict[str, Route]] = {}
        self._is_writable = folder is not None

    def get(self, case: ConvCase) -> Route:
        with self._lock:
            return self._table(case.arch).get(str(case), Route())

    def reload(self) -> None:
        """Read the files again when a route is asked for next, since another process has changed them."""
        with self._lock:
            if self._is_writable:
                self._tables.clear()

    def routes(self, arch: str) -> dict[str, Route]:
        with self._lock:
            return dict(self._table(arch))

    def suspects(self, case: ConvCase) -> set[str]:
        """List the rungs that ended processes at cases with this software, from the second death on."""
        deaths = [
            rung
            for text, route in self.routes(case.arch).items()
            for rung in route.deadly
            if ConvCase.from_text(text).software == case.software
        ]
        return set(deaths) if len(deaths) >= SUSPECT_DEATHS else set()

    def choose(self, case: ConvCase, rung: str, reason: str) -> None:
        def change(route: Route) -> Route:
            failed = {name: text for name, text in route.failed.items() if name != rung}
            return replace(route, rung=rung, reason=shorten(reason), failed=failed)

        self._change(case, change)

    def add_failure(self, case: ConvCase, rung: str, reason: str) -> None:
        """Record a recognised error. The rung is skipped for this case until it is measured again."""
        self._change(case, lambda route: replace(route, failed={**route.failed, rung: shorten(reason)}))

    def block(self, case: ConvCase, rung: str, reason: str) -> None:
        def change(route: Route) -> Route:
            changed = replace(route, rung="", reason="") if route.rung == rung else route
            return replace(changed, deadly={**route.deadly, rung: shorten(reason)})

        self._change(case, change)

    @contextlib.contextmanager
    def trying(self, case: ConvCase, rung: str) -> Generator[None]:
        """Block a rung within the context, so that it stays blocked if the process ends there."""
        previous = self.get(case)
        self.block(case, rung, TRYING)
        try:
            yield
        finally:
            self.put(case, previous)

    def put(self, case: ConvCase, route: Route) -> None:
        """Replace what is known about a case; an empty route forgets it."""
        self._change(case, lambda _: route)

    def add_measured(
        self, case: ConvCase, milliseconds: dict[str, float], failed: dict[str, str], rung: str, reason: str
    ) -> None:
        """Record a measurement, in place of earlier times, failures, and deaths of the measured rungs."""
        self._change(
            case,
            lambda route: replace(
                route,
                rung=rung,
                reason=shorten(reason),
                measured={name: round(value, 4) for name, value in milliseconds.items()},
                failed={name: shorten(text) for name, text in failed.items()},
                deadly={name: text for name, text in route.deadly.items() if name not in milliseconds},
            ),
        )

    # ---- files --------------------------------------------------------------------------------------------

    def _table(self, arch: str) -> dict[str, Route]:
        if arch not in self._tables:
            file = self._file(arch)
            self._tables[arch] = {} if file is None else _read(file)
        return self._tables[arch]

    def _file(self, arch: str) -> Path | None:
        name = re.sub(r"[^\w.-]", "_", arch)
        return None if self.folder is None else self.folder / f"{name}.json"

    def _change(self, case: ConvCase, change: Callable[[Route], Route]) -> None:
        """Apply a change to the route on the disk, which another process may have changed meanwhile."""
        file = self._file(case.arch)
        with self._lock:
            if file is not None and self._is_writable:
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    # The lock is on a file of its own, since `file` is replaced.
                    with file.with_name(f".{file.name}.lock").open("ab") as lock:
                        take_lock(lock, waits=True)
                        self._tables[case.arch] = _read(file)
                        _apply(self._tables[case.arch], str(case), change)
                        _write(file, self._tables[case.arch])
                except OSError as error:
                    self._is_writable = False
                    _log.warning(
                        "%s cannot be written (%s); decisions about convolutions last until the end "
                        "of this process", file, error.strerror or error,
                    )  # fmt: skip
                else:
                    return
            _apply(self._table(case.arch), str(case), change)


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
            ConvCase.from_text(key)
            table[key] = route = Route(**fields)
            texts = (route.rung, route.reason, route.when, *route.failed.values(), *route.deadly.values())
            if {*map(type, texts)} != {str} or not {*map(type, route.measured.values())} <= {int, float}:
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

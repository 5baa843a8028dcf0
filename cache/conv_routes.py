"""The rung that each convolution takes on this card, and the reason, kept on disk as readable JSON.

The folder that the caller names holds one file per GPU architecture. This module needs no torch, and no fault
of a file is fatal: without a folder that can be written, what is learned lasts as long as the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import secrets
import threading
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

try:
    import fcntl
except ImportError:  # Windows: two processes at once may lose what one of them has learned, nothing else
    fcntl = None

_log = logging.getLogger(__name__)

VERSION = 1
MAX_ROUTES = 2000  # per file
# The number of deaths after which rungs are suspected at convolutions like those, and at all of a card.
_SOME_DEATHS, _MANY_DEATHS = 2, 3
MAX_REASON = 300  # characters

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ConvCase:
    """A convolution on a card: everything the choice of a rung may depend on.

    Attributes:
        arch: `gfx1100`, `sm_90`, `cpu`.
        rocm: Its version; `none` elsewhere.
        torch: Its version.
        dtype: torch's name for it, `bfloat16`.
        shape: (B, C, T, H, W) of the input.
        weight: (O, C / groups, kT, kH, kW).
        is_flat: Whether it is a 2D convolution, whose sizes are those of one frame.
    """

    arch: str
    rocm: str
    torch: str
    dtype: str
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    stride: Triple
    padding: Triple
    dilation: Triple
    groups: int
    is_flat: bool = False

    def __str__(self) -> str:
        """Return one line that `from_text` can read; it is the key in the file."""
        sizes = (self.shape, self.weight, self.stride, self.padding, self.dilation)
        names = ("x", "w", "stride", "pad", "dilation")
        shapes = " ".join(
            f"{name}={'x'.join(map(str, size))}" for name, size in zip(names, sizes, strict=True)
        )
        start = f"{self.arch} rocm={self.rocm} torch={self.torch} {self.dtype}"
        return f"{start} {shapes} groups={self.groups}{_FLAT if self.is_flat else ''}"

    @property
    def software(self) -> tuple[str, str]:
        """Return the versions that a fault depends on besides the card."""
        return self.rocm, self.torch

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what siblings have in common: the kernel's size, its stride and the dtype."""
        return self.is_flat, self.weight[2:], self.stride, self.dtype

    @property
    def positions(self) -> int:
        """Return the number of places in time and picture, which is the size that siblings differ in."""
        return math.prod(self.shape[2:])

    @classmethod
    def from_text(cls, text: str) -> ConvCase:
        """Return the case that `str` turned into this text.

        Raises:
            ValueError: If the text names no convolution.
        """
        match = _CASE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:200]!r} names no convolution; expected a text like {_EXAMPLE!r}.")
        arch, rocm, torch, dtype, *sizes, groups, flat = match.groups()
        shape, weight, *rest = (tuple(map(int, size.split("x"))) for size in sizes)
        stride, padding, dilation = cast(list[Triple], rest)
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
    """The knowledge about one case.

    Attributes:
        rung: The one to use first; empty if none has been chosen.
        reason: Why that one was chosen.
        when: The time of the last change, UTC.
        failed: Rungs that raised a recognised error, with its text.
        deadly: Rungs that ended the process, with the cause; only `tune --again` tries them again.
        measured: Milliseconds of the rungs that were timed.
    """

    rung: str = ""
    reason: str = ""
    when: str = ""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    deadly: dict[str, str] = field(default_factory=dict[str, str])
    measured: dict[str, float] = field(default_factory=dict[str, float])


def shorten(text: str) -> str:
    """Return a reason that fits one line of the file."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"


class RouteStore:
    """The routes of all cases. Threads may share the store, and processes its folder.

    Args:
        folder: The folder of the files; it is made when there is something to write. None keeps everything in
            memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._tables: dict[str, dict[str, Route]] = {}
        self._is_writable = folder is not None

    def get(self, case: ConvCase) -> Route:
        """Return the route of a case; an empty one if nothing is known."""
        with self._lock:
            return self._table(case.arch).get(str(case), Route())

    def routes(self, arch: str) -> dict[str, Route]:
        """Return all routes of an architecture, by the text of their case."""
        with self._lock:
            return dict(self._table(arch))

    def suspects(self, case: ConvCase) -> dict[str, str]:
        """Return the rungs that may end the process at a case, as they did at others, each with the reason.

        After two deaths at siblings, which have the same kernel, stride and dtype, their rungs are suspected
        at siblings that are as large as the smaller of the two. After three deaths on this card, with this
        software, all rungs that caused one are suspected everywhere.
        """
        deaths = [
            (other, rung)
            for text, route in self.routes(case.arch).items()
            for rung in route.deadly
            if (other := ConvCase.from_text(text)).software == case.software
        ]
        where = "on this card"
        if len(deaths) < _MANY_DEATHS:
            where = "in convolutions like this one"
            deaths = [death for death in deaths if death[0].kind == case.kind]
            least = min((other.positions for other, _ in deaths), default=0)
            if len(deaths) < _SOME_DEATHS or case.positions < least:
                return {}
        return {rung: f"processes ended {len(deaths)} times {where}" for _, rung in deaths}

    def choose(self, case: ConvCase, rung: str, reason: str) -> None:
        """Make a rung that has worked the first one to use."""

        def change(route: Route) -> Route:
            failed = {name: text for name, text in route.failed.items() if name != rung}
            return replace(route, rung=rung, reason=shorten(reason), failed=failed)

        self._change(case, change)

    def add_failure(self, case: ConvCase, rung: str, reason: str) -> None:
        """Record a recognised error; the rung is passed over until it is measured again."""
        self._change(case, lambda route: replace(route, failed={**route.failed, rung: shorten(reason)}))

    def add_deadly(self, case: ConvCase, rung: str, reason: str) -> None:
        """Record that a rung ended the process."""

        def change(route: Route) -> Route:
            left = replace(route, rung="", reason="") if route.rung == rung else route
            return replace(left, deadly={**route.deadly, rung: shorten(reason)})

        self._change(case, change)

    @contextlib.contextmanager
    def trying(self, case: ConvCase, rung: str) -> Generator[None]:
        """Keep a note on disk while a rung is tried, for `take_interrupted`; one at a time in a folder."""
        note = self._note(case.arch)
        if note is None:
            yield
            return
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{case}\n{rung}\n", encoding="utf-8")
        try:
            yield
        finally:
            note.unlink(missing_ok=True)

    def take_interrupted(self, arch: str) -> tuple[ConvCase, str] | None:
        """Return, once, what was being tried when a process died; nobody else may be trying a rung."""
        note = self._note(arch)
        if note is None or not note.is_file():
            return None
        lines = note.read_text(encoding="utf-8", errors="replace").splitlines()
        note.unlink()
        with contextlib.suppress(ValueError):
            if len(lines) == 2:
                return ConvCase.from_text(lines[0]), lines[1]
        return None

    def add_measured(
        self, case: ConvCase, milliseconds: dict[str, float], failed: dict[str, str], rung: str, reason: str
    ) -> None:
        """Record the times of the rungs, in place of earlier times, failures and deaths."""
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
            self._tables[arch] = {} if file is None else self._load(file)
        return self._tables[arch]

    @staticmethod
    def _load(file: Path) -> dict[str, Route]:
        with contextlib.suppress(_Damaged):
            return _read(file)
        try:
            with _locked(file):
                return _read_locked(file)
        except OSError:  # damaged, in a folder that cannot be written
            return {}

    def _file(self, arch: str) -> Path | None:
        name = re.sub(r"[^\w.-]", "_", arch)
        return None if self._folder is None else self._folder / f"{name}.json"

    def _note(self, arch: str) -> Path | None:
        file = self._file(arch)
        return None if file is None else file.with_name(f".{file.stem}.trying")

    def _change(self, case: ConvCase, change: Callable[[Route], Route]) -> None:
        """Apply a change to what is on disk now, which another process may have written meanwhile."""
        key, file = str(case), self._file(case.arch)
        with self._lock:
            if file is None or not self._is_writable:
                _apply(self._table(case.arch), key, change)
                return
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with _locked(file):
                    table = _read_locked(file)
                    _apply(table, key, change)
                    _write(file, table)
                self._tables[case.arch] = table
            except OSError as error:
                self._is_writable = False
                _log.warning(
                    "%s cannot be written (%s); what is learned about convolutions lasts until the end "
                    "of this process",
                    file,
                    error.strerror or error,
                )
                _apply(self._table(case.arch), key, change)


def _apply(table: dict[str, Route], key: str, change: Callable[[Route], Route]) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    table[key] = replace(change(table.pop(key, Route())), when=now)
    if len(table) > MAX_ROUTES:
        # The newest routes are kept, and before them those with a rung that must never be tried again.
        oldest = sorted(table, key=lambda name: (bool(table[name].deadly), table[name].when))
        for name in oldest[: len(table) - MAX_ROUTES]:
            del table[name]


class _Damaged(Exception):
    """The error of a file whose content `_write` did not write."""


def _read(file: Path) -> dict[str, Route]:
    """Return the routes in a file; none if there is no file, or if it cannot be opened.

    Raises:
        _Damaged: If its content is not what `_write` writes.
    """
    try:
        return _parsed(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except OSError as error:
        _log.warning("%s cannot be read (%s); starting without it", file, error.strerror or error)
        return {}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _Damaged(shorten(str(error))) from error


def _read_locked(file: Path) -> dict[str, Route]:
    """Return the routes in a file, with the lock held, and set a damaged file aside."""
    try:
        return _read(file)
    except _Damaged as error:
        aside = file.with_name(file.name + ".damaged")
        _log.warning("%s is damaged (%s); it is kept as %s", file, error, aside.name)
        file.replace(aside)
        return {}


def _parsed(content: Any) -> dict[str, Route]:
    """Return the routes of a file's content; raise a built-in error if `_write` did not write it."""
    if content["version"] != VERSION:
        raise ValueError(f"its version is {content['version']}; expected {VERSION}")
    table: dict[str, Route] = {}
    for key, fields in content["routes"].items():
        ConvCase.from_text(key)
        route = Route(**fields)
        values: list[Any] = [route.rung, route.reason, route.when]
        values += [
            text for reasons in (route.failed, route.deadly) for item in reasons.items() for text in item
        ]
        numbers: list[Any] = list(route.measured.values())
        if not all(isinstance(value, str) for value in values) or not all(
            isinstance(number, int | float) for number in numbers
        ):
            raise ValueError(f"the route of {key} has fields of another type")
        table[key] = route
    return table


def _write(file: Path, table: dict[str, Route]) -> None:
    routes = {
        key: {name: value for name, value in asdict(route).items() if value} for key, route in table.items()
    }
    data = json.dumps({"version": VERSION, "routes": routes}, indent=1, ensure_ascii=False).encode()
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(data + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(file: Path) -> Generator[None]:
    """Keep other processes from changing the file; the lock is a file of its own, as `file` is replaced."""
    with file.with_name(f".{file.name}.lock").open("ab") as stream:
        if fcntl is not None:
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield

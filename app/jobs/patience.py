"""How long an engine may be silent before it counts as hung, learned from how long it was before."""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diffusers_helper.errors import LongtakeError
from diffusers_helper.files import write_atomic
from diffusers_helper.planning.profiles import detect, engine_environment, profile_for

_log = logging.getLogger(__name__)

# For what was never seen here. MIOpen may search and compile kernels for half an hour, the first load of a
# model may download 40 GB.
FIRST_SECONDS = 45 * 60.0
FIRST_LOAD_SECONDS = 6 * 3600.0
# After that: a machine that swaps or is shared may well be eight times as slow for a while.
SHORTEST_SECONDS = 60.0
_FACTOR = 8.0
_MOST_ENTRIES = 500


# Found solvers and compiled kernels, by MIOpen's own defaults below the home directory.
MIOPEN_FOLDERS = (".config/miopen", ".cache/miopen")


def has_kernels(home: Path) -> bool:
    """Whether MIOpen has kept something: where not, as after a clean-up, it searches and compiles anew."""
    return any((home / name).is_dir() for name in MIOPEN_FOLDERS)


def card_in_use(environ: Mapping[str, str]) -> str:
    """What a silence depends on besides the work: the card, and what has MIOpen search and compile anew.

    Raises:
        InputError: for a value in the environment that cannot be used.
    """
    machine = detect(environ)
    if machine.kind != "rocm":
        return machine.name
    engine = {**environ, **engine_environment(profile_for(machine, environ), environ)}
    try:
        torch = importlib.metadata.version("torch")  # which brings MIOpen
    except importlib.metadata.PackageNotFoundError:
        torch = "?"
    return f"{machine.name} ({machine.arch}), torch {torch}, find mode {engine.get('MIOPEN_FIND_MODE', '?')}"


@dataclass(slots=True)
class Patience:
    """Longest silences by card and kind of work, in seconds.

    Attributes:
        file: where they are kept, as JSON; None to forget them.
        card: the one that works; what another one took says nothing about it.
        shortest: no limit is below it.
        first: limit for work that was never seen, but for loading.
    """

    file: Path | None = None
    card: str = ""
    shortest: float = SHORTEST_SECONDS
    first: float = FIRST_SECONDS
    _longest: dict[str, float] = field(default_factory=dict[str, float])
    _changed: bool = False

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            try:
                entries = json.loads(self.file.read_text(encoding="utf-8"))
                self._longest = {str(kind): float(seconds) for kind, seconds in entries.items()}
            except (OSError, ValueError, AttributeError, TypeError) as error:
                _log.warning("%s cannot be read (%s); limits are learned anew", self.file, error)

    def knows(self, kind: str) -> bool:
        """Whether this work has been done on this card before."""
        return self._key(kind) in self._longest

    def limit(self, kind: str, *, load: bool = False) -> float:
        """Seconds of silence after which this work counts as hung. `load` for getting a model ready."""
        most = FIRST_LOAD_SECONDS if load else self.first
        if not self.knows(kind) or load:
            return most
        return min(max(self.shortest, _FACTOR * self._longest[self._key(kind)]), most)

    def learn(self, kind: str, seconds: float) -> None:
        """Takes note of a silence that ended well."""
        key = self._key(kind)
        if seconds > self._longest.get(key, 0.0):
            self._longest.pop(key, None)
            self._longest[key] = seconds  # last again: the oldest entries are dropped first
            self._changed = True

    def _key(self, kind: str) -> str:
        return f"{self.card}: {kind}"

    def save(self) -> None:
        """Writes what was learned since the last time, if there is a file for it."""
        if self.file is None or not self._changed:
            return
        self._changed = False
        newest = list(self._longest.items())[-_MOST_ENTRIES:]
        try:
            write_atomic(self.file, json.dumps(dict(newest), indent=1).encode())
        except (OSError, LongtakeError) as error:
            _log.warning("%s cannot be written (%s)", self.file, error)

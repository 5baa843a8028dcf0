"""The limits of an engine's silence, after which it counts as hung, learned from earlier silences."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.machine import this_profile
from diffusers_helper.errors import LongtakeError
from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.machine.packages import version_of
from diffusers_helper.planning.variables import engine_environment
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)

# The limits for work that this machine has not done before. MIOpen may search and compile kernels for half
# an hour, and the first load of a model may download 40 GB.
FIRST_SECONDS = 45 * 60.0
FIRST_LOAD_SECONDS = 6 * 3600.0
# The least limit and the factor for known work. A machine that swaps or is shared may be eight times as slow.
_SHORTEST_SECONDS = 60.0
_FACTOR = 8.0


# The folders of solvers and compiled kernels, by MIOpen's own defaults below the home directory.
MIOPEN_FOLDERS = (".config/miopen", ".cache/miopen")


def has_kernels(home: Path) -> bool:
    """Whether MIOpen has stored kernels. Without them, as after a clean-up, it compiles them again."""
    return any((home / name).is_dir() for name in MIOPEN_FOLDERS)


def card_in_use(environ: Mapping[str, str]) -> str:
    """Make a name that changes with the card and with anything else that makes MIOpen search again."""
    profile = this_profile(environ)
    machine = profile.machine
    if machine.kind != "rocm":
        return machine.name
    engine = {**environ, **engine_environment(profile.environment, environ)}
    torch = version_of("torch") or "?"  # torch brings MIOpen
    return f"{machine.name} ({machine.arch}), torch {torch}, find mode {engine.get('MIOPEN_FIND_MODE', '?')}"


@dataclass(slots=True)
class WatchdogTimeouts:
    """The longest silences that ended well, in seconds, by kind of work, which begins with the card."""

    file: Path | None = None
    _longest: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            try:
                entries = plain_json(read_file(self.file))
                self._longest = {str(kind): float(seconds) for kind, seconds in entries.items()}
            except (OSError, ValueError, AttributeError, TypeError, OverflowError) as error:
                _log.warning("%s cannot be read (%s); limits are learned again", self.file, error)

    def knows(self, kind: str) -> bool:
        return kind in self._longest

    def limit(self, kind: str, *, load: bool = False, compiles: bool = False) -> float:
        """The seconds of silence after which this work counts as hung.

        Nothing is learned for loading a model, nor while the driver may compile kernels, as in a first job.
        """
        longest = FIRST_LOAD_SECONDS if load else FIRST_SECONDS
        if not self.knows(kind) or load or compiles:
            return longest
        return min(max(_SHORTEST_SECONDS, _FACTOR * self._longest[kind]), longest)

    def learn(self, kind: str, seconds: float) -> None:
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))

    def save(self) -> None:
        if self.file is None:
            return
        try:
            write_atomic(self.file, json.dumps(self._longest, indent=1).encode())
        except (OSError, LongtakeError) as error:
            _log.warning("%s cannot be written (%s)", self.file, error)

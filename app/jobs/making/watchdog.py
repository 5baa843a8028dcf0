"""The limits of an engine's silence, after which it counts as hung, learned from earlier silences."""

from collections.abc import Mapping
from pathlib import Path

from app.machine import this_profile
from diffusers_helper.machine.local import Facts
from diffusers_helper.machine.packages import version_of
from diffusers_helper.planning.variables import engine_environment

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


class WatchdogTimeouts:
    """The longest silences that ended well, in seconds, by kind of work, which begins with the card."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        entries = Facts(file).all().items()
        self._longest = {kind: seconds for kind, seconds in entries if isinstance(seconds, float)}

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
        if self.file is not None and self.file.parent.is_dir():  # an outputs folder may be away
            Facts(self.file).write_all(self._longest)

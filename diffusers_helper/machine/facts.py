"""Facts about this machine that are determined once and kept in small JSON files, one entry per key."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from diffusers_helper.files import write_atomic

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
        """Store the entry for a key. If the file cannot be written, log a warning."""
        if self.file is None:
            return
        entries = {**self._all(), key: entry}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, json.dumps(entries, indent=1).encode() + b"\n")
        except OSError as error:
            _log.warning("%s cannot be written (%s)", self.file, error)

    def forget(self) -> int:
        """Remove the file, and return the number of entries that it had.

        Raises:
            OSError: If the file cannot be removed.
        """
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

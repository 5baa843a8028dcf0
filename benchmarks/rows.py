"""The rows of a benchmark, which are on the disk as soon as they are measured."""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from diffusers_helper.files import write_atomic

EXIT_INTERRUPTED = 130


class Rows(list[dict[str, Any]]):
    """The rows so far, in a JSON file that is complete after each of them.

    Within its context, Ctrl-C ends the measurements and not the program, which can then report the rows.

    Attributes:
        file: The file, which a later run of the same benchmark replaces.
        is_interrupted: Whether Ctrl-C has ended the measurements.
    """

    def __init__(
        self, script: str, file: Path | None = None, facts: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        """Prepare the rows of a benchmark.

        Args:
            script: The file of the benchmark.
            file: The file for the rows; None for one of the benchmark's name among the temporary files.
            facts: A function that returns what else the file should have.
        """
        folder = Path(tempfile.gettempdir(), "longtake-benchmarks")
        self.file = file or folder / f"{Path(script).stem}.json"
        self.is_interrupted = False
        self._facts = facts

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, and write the file."""
        self.append(dict(row))
        self._write(is_complete=False)

    def exit_code(self, otherwise: int = 0) -> int:
        """Return the program's exit code."""
        return EXIT_INTERRUPTED if self.is_interrupted else otherwise

    def _write(self, *, is_complete: bool) -> None:
        content = {"complete": is_complete, **self._facts(), "rows": list(self)}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.file, json.dumps(content, indent=1).encode() + b"\n")

    def __enter__(self) -> "Rows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.is_interrupted = isinstance(error, KeyboardInterrupt)
        if error is None or self.is_interrupted:
            self._write(is_complete=error is None)
        if self.is_interrupted:
            sys.stderr.write(f"Interrupted. What was measured is kept in {self.file}.\n")
        return self.is_interrupted

"""The note in a job's folder that lack of memory has ended engines; the job then uses its smallest plan.

The process that watches the engine writes it, and each engine that continues the job reads it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from diffusers_helper.files import write_atomic


@dataclass(frozen=True, slots=True)
class DeathNote:
    """The cause of the deaths, and the answer to them.

    Attributes:
        stage: The stage in which the engines died.
        text: The driver's words.
        change: How the plan was made smaller, for a person; empty before an engine has done it.
    """

    stage: str
    text: str
    change: str = ""

    @classmethod
    def read(cls, file: Path) -> DeathNote | None:
        """Return the note in a file; None if there is none that can be read."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Write the note.

        Raises:
            OSError: If it cannot be written.
        """
        write_atomic(file, json.dumps(asdict(self)).encode() + b"\n")

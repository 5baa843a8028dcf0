"""The note in a job's folder which says that a lack of memory has ended the job's engines.

The process that supervises the engine writes it. The next engine reads it and uses the job's smallest plan.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from diffusers_helper.files import read_file, write_atomic
from diffusers_helper.strangers.limited_json import plain_json


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """The cause of the engines' deaths, and the change that an engine has made in response.

    Attributes:
        stage: The stage in which the engines died.
        text: The driver's message.
        change: A description of how the plan was made smaller; empty until an engine has done so.
    """

    stage: str
    text: str
    change: str = ""

    @classmethod
    def read(cls, file: Path) -> CrashRecord | None:
        """Return the note in a file, or None if the file is missing or cannot be read."""
        try:
            return cls(**plain_json(read_file(file)))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Write the note to a file.

        Raises:
            OSError: If the file cannot be written.
        """
        write_atomic(file, json.dumps(asdict(self)).encode() + b"\n")

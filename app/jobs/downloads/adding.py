"""The addition of a model of a user's own files, by the command that checks them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.jobs.downloads.process import SAID
from app.machine import module_command
from app.redact import without_paths
from diffusers_helper.errors import InputError, LongtakeError

_MOST_SECONDS = 300
_ONE_AT_A_TIME = threading.Lock()


@dataclass(slots=True)
class Adding:
    """What is known of the addition of models, for pages that were opened meanwhile.

    Attributes:
        name: The model that is being checked; "" for none.
        since: When that began, by the monotonic clock.
        problem: Why the last one was not added; "" if it was.
    """

    name: str = ""
    since: float = 0.0
    problem: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the name, the seconds that its check has taken, and the problem."""
        seconds = time.monotonic() - self.since if self.name else 0.0
        return {"name": self.name, "seconds": round(seconds), "problem": self.problem}


ADDING = Adding()


def add_model(name: str, parts: Mapping[str, Path], base: str) -> None:
    """Check files and put the model that they make on the list, in a process, since the check needs torch.

    Args:
        name: The new model's name.
        parts: The file or folder of each part, by the part's name.
        base: The model that has all other parts; "" for the one that fits the transformer.

    Raises:
        InputError: If the name or a file cannot be used. The list is as before then. The text has no paths.
        LongtakeError: If the process has died or takes too long.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise InputError("Another model is being checked.", "Try again in a moment.")
    try:
        ADDING.name, ADDING.since, ADDING.problem = name, time.monotonic(), ""
        _add(name, parts, base)
    except LongtakeError as error:
        ADDING.problem = str(error)
        raise
    finally:
        ADDING.name = ""
        _ONE_AT_A_TIME.release()


def _add(name: str, parts: Mapping[str, Path], base: str) -> None:
    # Each value stands behind an equals sign, and the name at the end, so that none is taken for an option.
    options = [f"--{part.replace('_', '-')}={path}" for part, path in parts.items()]
    options += [f"--base={base}"] * bool(base)
    command, environ = module_command("app", os.environ)
    try:
        done = subprocess.run(
            (*command, "models", "add", "--json", *options, "--", name),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            env=environ, timeout=_MOST_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LongtakeError(f"The check took more than {_MOST_SECONDS} seconds.", "Try again.") from error
    if not done.returncode:
        return
    text = done.stderr.strip()
    for path in parts.values():  # whatever their names contain
        text = text.replace(str(path), path.name)
    last = without_paths(next(reversed(text.splitlines()), f"exit code {done.returncode}"))
    if done.returncode in SAID:
        raise InputError(last)
    raise LongtakeError(f"The process that checks the files has died ({last[:200]}).", "Try again.")

"""The processes that download, check, convert or add a model, as the program that started them sees them."""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from app.jobs.stdio import Child, opened, wait_or_kill
from app.machine import module_command
from app.redact import without_paths
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.machine.file_locks import Lock
from diffusers_helper.models.downloads import Speed

Task = Literal["get", "verify", "convert"]
_EXPLAINED_CODES = (1, 2)  # the exit codes with which a command has explained an error in one line
_END_SECONDS, _TIDY_SECONDS, _MOST_SECONDS = 2.0, 10.0, 300


class ModelProcess:
    """A process that downloads, checks or converts one model; `done` and `total` are bytes.

    A download or a check ends with this program, even if it is killed. A conversion then goes on to its end,
    since nothing could continue it.
    """

    def __init__(self, task: Task, model: str, weight_dtype: str = "", *, lock: Lock | None = None) -> None:
        """Start the process. The lock is released at its end."""
        self.task, self._lock = task, lock
        self.done = self.total = 0
        self.problems: list[str] = []
        self.message = self.remedy = ""
        self._speed: Speed | None = None
        module, arguments = "app.jobs.downloads.worker", (task, model)
        if task == "convert":  # torch is needed, which this layer of the program does without
            module, arguments = "app", ("models", task, model, "--weight-dtype", weight_dtype, "--json")
        command, environ = module_command(module, os.environ)
        self._child = Child((*command, *arguments), environ, self._take)
        self._process = self._child.process

    @property
    def bytes_per_second(self) -> float:
        """The speed of the last seconds, in which perhaps nothing came; 0 while it is not known."""
        return self._speed.at(self.done, time.monotonic()) if self._speed else 0.0

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None and not self._child.reader.is_alive()

    @property
    def has_failed(self) -> bool:
        if self._process.returncode and not self.message:
            lines = self._child.errors.text().strip().splitlines()
            last_line = lines[-1] if lines else f"exit code {self._process.returncode}"
            if self.task == "convert" and self._process.returncode in _EXPLAINED_CODES:
                self.message = last_line
            else:
                self.message, self.remedy = f"The process for it has died ({last_line[:200]}).", "Try again."
        return self._process.returncode != 0

    def end(self) -> None:
        """End the process at once. What a download has written stays, and a copy that is not whole goes."""
        if self.task == "convert":
            self._process.terminate()
        else:
            self._process.kill()
        wait_or_kill(self._process, _TIDY_SECONDS)
        self._child.reader.join(_END_SECONDS)
        with contextlib.suppress(OSError):
            opened(self._process.stdin).close()
        if self._lock is not None:
            self._lock.release()

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        if "message" in message:
            self.message, self.remedy = message["message"], message["remedy"]
        elif "problems" in message:
            self.problems += message["problems"]
        elif "done_bytes" in message:
            self.done, self.total = message["done_bytes"], message["total_bytes"]
            self._speed = self._speed or Speed(self.done, time.monotonic())


class Adding:
    """The addition of models of a user's own files, one at a time, for pages that were opened meanwhile."""

    def __init__(self) -> None:
        self.name = ""
        self.since = 0.0
        self.problem = ""
        self._lock = threading.Lock()

    def facts(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.since if self.name else 0.0
        return {"name": self.name, "seconds": round(seconds), "problem": self.problem}

    def add(self, name: str, components: Mapping[str, Path], base: str) -> None:
        """Check files and list the model that they make with parts of `base` ("" for the one that fits)."""
        if not self._lock.acquire(blocking=False):
            raise InputError("Another model is being checked.", "Try again in a moment.")
        try:
            self.name = name
            self.since = time.monotonic()
            self.problem = ""
            _add(name, components, base)
        except LongtakeError as error:
            self.problem = str(error)
            raise
        finally:
            self.name = ""
            self._lock.release()


def _add(name: str, components: Mapping[str, Path], base: str) -> None:
    # Each value stands behind an equals sign, and the name at the end, so that none is taken for an option.
    options = [f"--{component.replace('_', '-')}={path}" for component, path in components.items()]
    options += [f"--base={base}"] * bool(base)
    command, environ = module_command("app", os.environ)
    try:
        completed = subprocess.run(
            (*command, "models", "add", "--json", *options, "--", name),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            env=environ, timeout=_MOST_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LongtakeError(f"The check took more than {_MOST_SECONDS} seconds.", "Try again.") from error
    if not completed.returncode:
        return
    text = completed.stderr.strip()
    for path in components.values():  # whatever their names contain
        text = text.replace(str(path), path.name)
    last_line = without_paths(next(reversed(text.splitlines()), f"exit code {completed.returncode}"))
    if completed.returncode in _EXPLAINED_CODES:
        raise InputError(last_line)
    raise LongtakeError(f"The process that checks the files has died ({last_line[:200]}).", "Try again.")

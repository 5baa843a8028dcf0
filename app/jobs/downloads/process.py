"""One process that downloads, checks or converts a model, as the program that started it sees it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from typing import IO, Any, Literal

from app.jobs.stdio import ErrorTail, opened
from app.machine import module_command
from diffusers_helper.models.downloads import Speed

Task = Literal["get", "verify", "convert"]
SAID = (1, 2)  # the exit codes with which a command has explained an error in one line
_END_SECONDS, _TIDY_SECONDS = 2.0, 10.0


class ModelProcess:
    """A process that downloads, checks or converts one model.

    A download or a check ends with this program, even if it is killed. A conversion then goes on to its end,
    since nothing could continue it.

    Attributes:
        task: What the process does.
        done, total: The bytes that are here, checked or written, and those in all; 0 while not known.
        bytes_per_second: The speed of the last seconds; 0 while it is not known.
        problems: What a check has found so far, in sentences.
        message, remedy: Why the task failed; empty if it did not.
    """

    def __init__(self, task: Task, model: str, weight_dtype: str = "") -> None:
        """Start the process.

        Args:
            task: What it does.
            model: The name of the model.
            weight_dtype: For a conversion, the type of the copy's weights.
        """
        self.task: Task = task
        self.done = self.total = 0
        self.problems: list[str] = []
        self.message = self.remedy = ""
        self._speed: Speed | None = None
        self.bytes_per_second = 0.0
        module, arguments = "app.jobs.downloads.worker", (task, model)
        if task == "convert":  # torch is needed, which this layer of the program does without
            module, arguments = "app", ("models", task, model, "--weight-dtype", weight_dtype, "--json")
        command, environ = module_command(module, os.environ)
        self._process = subprocess.Popen(
            (*command, *arguments),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
        )  # fmt: skip
        self._errors = ErrorTail(opened(self._process.stderr))
        self._reader = threading.Thread(
            target=self._read, args=(opened(self._process.stdout),), name=f"{task}-{model}", daemon=True
        )
        self._reader.start()

    @property
    def is_over(self) -> bool:
        """Return whether the process has ended and everything that it said is known."""
        return self._process.poll() is not None and not self._reader.is_alive()

    @property
    def has_failed(self) -> bool:
        """Return whether the process, which is over, has not done its task."""
        if self._process.returncode and not self.message:
            lines = self._errors.text().strip().splitlines() or [f"exit code {self._process.returncode}"]
            if self.task == "convert" and self._process.returncode in SAID:
                self.message = lines[-1]
            else:
                self.message, self.remedy = f"The process for it has died ({lines[-1][:200]}).", "Try again."
        return self._process.returncode != 0

    def end(self) -> None:
        """End the process at once. What a download has written stays, and a copy that is not whole goes."""
        if self.task == "convert":
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TIDY_SECONDS)
        self._process.kill()
        self._process.wait(_END_SECONDS)
        self._reader.join(_END_SECONDS)
        with contextlib.suppress(OSError):
            opened(self._process.stdin).close()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._take(json.loads(line))

    def _take(self, reported: dict[str, Any]) -> None:
        if "message" in reported:
            self.message, self.remedy = reported["message"], reported["remedy"]
        elif "problems" in reported:
            self.problems += reported["problems"]
        else:
            now = time.monotonic()
            self.done, self.total = reported["done_bytes"], reported["total_bytes"]
            self._speed = self._speed or Speed(self.done, now)
            self.bytes_per_second = self._speed.at(self.done, now)

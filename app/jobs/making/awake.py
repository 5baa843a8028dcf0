"""The lock that keeps the computer from going to sleep while a job is being made."""

import logging
import subprocess
from typing import Self

from app.jobs.stdio import close_child
from app.machine import output_of

_log = logging.getLogger(__name__)
_COMMAND = (
    "systemd-inhibit", "--what=sleep:idle", "--mode=block", "--who=Longtake", "--why=A video is being made",
)  # fmt: skip
_END_SECONDS = 1.0


class Awake:
    """A context manager within which the computer stays awake, where systemd-logind can see to that.

    `systemd-inhibit` holds logind's lock for as long as the program that it runs. That is a `cat` that
    reads a pipe from this process, so the lock ends with this process, however that ends. Where the lock
    cannot be had, as in a container, nothing else happens.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def holds(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                (*_COMMAND, "cat"),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:  # above all, there is no such program
            _log.debug("the computer may go to sleep meanwhile: %s", error)
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            close_child(self._process, _END_SECONDS)  # until then, the lock is held
            self._process = None


def can_stay_awake() -> bool:
    return output_of(*_COMMAND, "echo", "held") == "held"

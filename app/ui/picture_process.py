"""The client of the process that decodes uploaded pictures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.jobs.stdio import opened
from app.machine import module_command
from diffusers_helper.errors import PictureError

_REMEDY = "Open it in a picture viewer and save it as PNG or JPEG."


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for decoding one picture.

    Attributes:
        pixels: The largest number of pixels of a picture that is decoded at all.
        memory: The largest address space of the process, in bytes.
        seconds: The most processor time, in seconds.
        wall_seconds: The most elapsed time, in seconds, whatever the process does or waits for.
    """

    pixels: int
    memory: int
    seconds: int
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class Size:
    """The upright size of a picture in the file and as it is used, which differ above 16 megapixels."""

    width: int
    height: int
    used_width: int
    used_height: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """A picture that can be used: its size, and its content as a plain PNG file."""

    size: Size
    png: bytes


class PictureProcess:
    """A child process that decodes one picture at a time, for any thread.

    It is started when it is first needed, and again after a picture has ended it. Lines of JSON and the bytes
    of PNG files go through its pipes. Its input closes when this process ends, and then it ends too.
    """

    def __init__(self, limits: Limits, command: tuple[str, ...] = ()) -> None:
        self.limits, self._command = limits, command
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def decode(self, path: Path) -> Decoded | None:
        """Return a picture, or None if it has more pixels than this process decodes.

        Raises:
            PictureError: If the picture cannot be used, or takes more time or memory than the limits allow.
        """
        with self._turn:
            process = self._process = self._started()
            timer = threading.Timer(self.limits.wall_seconds, process.kill)
            timer.daemon = True
            timer.start()
            try:
                answer, png = self._ask(process, path)
            finally:
                timer.cancel()
        if "size" in answer:
            return Decoded(Size(*answer["size"]), png)
        if "error" in answer:
            raise PictureError(*answer["error"])
        if "is_too_much" in answer:
            raise _refusal(path, f"takes more than {answer['is_too_much']} to decode")
        return None

    def close(self) -> None:
        """End the process at once, even while it decodes. Any thread may call this."""
        process = self._process
        if process is not None:
            process.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            if self._process.poll() is None:
                return self._process
            _close(self._process)
        command, variables = module_command("app.ui.picture_worker", os.environ)
        # The threads of numpy's library, which nothing here uses, would reserve address space.
        variables["OPENBLAS_NUM_THREADS"] = "1"
        return subprocess.Popen(
            (*(self._command or command), str(self.limits.memory)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables,
        )  # fmt: skip

    def _ask(self, process: subprocess.Popen[bytes], path: Path) -> tuple[dict[str, Any], bytes]:
        command = {"path": str(path), "most_pixels": self.limits.pixels, "seconds": self.limits.seconds}
        stdin, stdout = opened(process.stdin), opened(process.stdout)
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
            answer = json.loads(stdout.readline())
            png = stdout.read(answer["bytes"])
            if len(png) == answer["bytes"]:
                return answer, png
        except (OSError, ValueError):
            pass  # the process ended in the middle of the picture
        process.kill()
        if process.wait() == -signal.SIGXCPU:
            raise _refusal(path, f"takes more than {self.limits.seconds} s to decode")
        raise _refusal(path, "crashed the program that decodes it, or took too long")


def _refusal(path: Path, what: str) -> PictureError:
    return PictureError(f"The picture {path.name} {what}; expected an ordinary picture file.", _REMEDY)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            opened(pipe).close()

"""The processes in which files of unknown origin are read, within limits of time and memory."""

import contextlib
import inspect
import os
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import TypeAdapter

from app.jobs.stdio import opened
from app.machine import module_command
from app.reading.values import result_of
from diffusers_helper.errors import InputError, LongtakeError, PictureError
from diffusers_helper.machine.signals import SIGXCPU
from diffusers_helper.untrusted.confined import CONFINEMENT
from diffusers_helper.untrusted.limited_json import parse_json

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MAX_BYTES = 2**29  # of an answer
_QUESTION = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for reading one file.

    Attributes:
        memory: The largest address space of the process, in bytes.
        seconds: Of processor time.
        wall_seconds: Of elapsed time, whatever the process does or waits for.
    """

    memory: int
    seconds: int
    wall_seconds: float


_LIMITS = Limits(memory=2**30, seconds=8, wall_seconds=60.0)


class Unreadable(InputError):
    """The error for a file that exceeds a limit, or crashes its reader, as `reason` says."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is not readable: it {reason}.", "Choose another file.")


class ReadingProcess:
    """A child process that reads one file at a time by the readers of one module, for any thread.

    It is started when it is first needed, and again after a file has ended it, or after it has ended itself
    because nobody asked. Lines of JSON go through its pipes. Its input closes when this process
    ends, and then it ends too.
    """

    def __init__(self, limits: Limits = _LIMITS, command: Sequence[str] = ()) -> None:
        self.limits, self._command = limits, tuple(command)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, reader: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        arguments = inspect.signature(reader).bind(*args, **kwargs).arguments
        name = next((value.name for value in arguments.values() if isinstance(value, Path)), "The file")
        question = {"reader": reader.__name__, "arguments": arguments, "seconds": self.limits.seconds}
        with self._lock:
            answer = self._answer(reader, _QUESTION.dump_json(question) + b"\n", name)
        if isinstance(answer, tuple):
            return answer[0]
        if "is_too_much" in answer:
            raise Unreadable(name, f"takes more than {self.limits.memory >> 20} MiB of memory")
        if "errno" in answer:
            raise OSError(answer["errno"], answer["strerror"])
        raise _error(answer["kind"], **answer["error"])

    def close(self) -> None:
        """End the process at once, even while it reads. Any thread may call this."""
        process = self._process
        if process is not None:
            process.kill()

    def _answer(
        self, reader: Callable[..., Any], question: bytes, name: str, num_tries: int = 2
    ) -> tuple[Any] | dict[str, Any]:
        process = self._process = self._running_process(reader.__module__)
        timer = threading.Timer(self.limits.wall_seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            stdin, stdout = opened(process.stdin), opened(process.stdout)
            stdin.write(question)
            stdin.flush()
            line = stdout.readline(_MAX_BYTES)
            return result_of(reader).validate_json(line) if line.startswith(b"[") else parse_json(line)
        except (OSError, ValueError):  # the process ended in the middle of the file
            process.kill()
        finally:
            timer.cancel()
        code = process.wait()
        if code == 0 and num_tries > 1:  # it ended itself just now, because nobody had asked for a while
            return self._answer(reader, question, name, num_tries - 1)
        if code == -SIGXCPU:
            raise Unreadable(name, f"takes more than {self.limits.seconds} s to read")
        raise Unreadable(name, "crashed the program that reads it, or took too long")

    def _running_process(self, module: str) -> subprocess.Popen[bytes]:
        if self._process is not None:
            if self._process.poll() is None:
                return self._process
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    opened(pipe).close()
        command, variables = module_command("app.reading.worker", os.environ)
        # The threads of numpy's library, which nothing here uses, would reserve address space, as would
        # memory for each of the threads that decode a video.
        variables |= {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        return subprocess.Popen(
            (*(self._command or command), module, str(self.limits.memory)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables,
        )  # fmt: skip


class ReadingRoom:
    def __init__(self) -> None:
        self._processes: dict[str, ReadingProcess] = {}

    def __call__(self, reader: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._processes.setdefault(reader.__module__, ReadingProcess()).read(reader, *args, **kwargs)

    def close(self) -> None:
        for process in list(self._processes.values()):
            process.close()


@contextlib.contextmanager
def reading_elsewhere() -> Generator[None]:
    room = ReadingRoom()
    previous, CONFINEMENT.run_reader = CONFINEMENT.run_reader, room
    try:
        yield
    finally:
        CONFINEMENT.run_reader = previous
        room.close()


def _error(kind: str, message: str, remedy: str, setting: str, code: Any) -> LongtakeError:
    if kind == PictureError.__name__:
        return PictureError(message, remedy)
    if kind == LongtakeError.__name__:
        return LongtakeError(message, remedy, setting=setting, code=code)
    return InputError(message, remedy, setting=setting)

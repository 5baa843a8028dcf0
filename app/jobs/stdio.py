"""Tools for standard streams: what is written to them, their exclusive use, and those of child processes."""

import codecs
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, cast

from app.languages.translation import spoken
from diffusers_helper.machine.terminal import LogLines, one_line, visible

_log = logging.getLogger(__name__)


def prepare_streams() -> None:
    """Make the standard streams safe to write any text to. A program calls this before anything else.

    Each stream with which the process was started closed (`>&-`) becomes the null device. Otherwise the next
    opened file would get the stream's number, and printed text would go into that file.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this stream's
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the whole process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # it is not a plain file
            # Its encoding may lack some characters.
            cast(io.TextIOWrapper, stream).reconfigure(errors="backslashreplace")


def start_log(level: int | str) -> None:
    """Write log records from this level on to standard error. A program calls this once."""
    console = logging.StreamHandler()
    console.setLevel(level)  # a job's own log file lowers the level of its loggers
    console.setFormatter(LogLines("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[console])


def say(*lines: str) -> None:
    r"""Write lines to standard output at once. A line break within a line, as in a name, is shown as \n."""
    sys.stdout.write("".join(f"{one_line(in_language(line))}\n" for line in lines))
    sys.stdout.flush()


def complain(*lines: str) -> None:
    """Write lines to standard error like `say`. If they cannot be written, this is ignored."""
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{one_line(in_language(line))}\n" for line in lines))
        sys.stderr.flush()


def in_language(text: str) -> str:
    """Translate a text for a person at this terminal; what programs read, as JSON, stays as it is."""
    return text if text.startswith(("{", "[")) else spoken(os.environ).text(text)


def opened(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def close_child(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a child process by closing its stdin, or kill it if it has not ended after this time."""
    with contextlib.suppress(OSError):
        opened(process.stdin).close()
    wait_or_kill(process, seconds)


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def take_stdout() -> IO[bytes]:
    """Return the unbuffered stdout for the caller alone; all other output goes to stderr."""
    sys.stdout.flush()
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "wb", buffering=0)


def write_whole(pipe: IO[bytes], content: bytes) -> None:
    while content:
        content = content[pipe.write(content) :]


def take_stdin() -> IO[bytes]:
    """Return the process's stdin for exclusive use by the caller; it is empty for all other readers."""
    private = os.fdopen(os.dup(0), "rb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return private


def end_with(descriptor: int) -> None:
    """End this process at once, from a thread, when a pipe from its parent closes."""

    def wait() -> None:
        while os.read(descriptor, 4096):  # a stream's lock would be held at the end of the process
            pass
        os._exit(0)

    threading.Thread(target=wait, name="parent", daemon=True).start()


class ErrorTail:
    """The end of a child's standard error, all of which may also be passed on to this process's own."""

    _MOST_BYTES = 16_384
    _CHUNK_BYTES = 4096
    _SECONDS = 1.0

    def __init__(self, pipe: IO[bytes], *, is_shown: bool = True) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._tail = b""
        self._is_shown = is_shown
        self._thread = threading.Thread(target=self._pump, name="engine-errors", daemon=True)
        self._thread.start()

    def forget(self) -> None:
        with self._lock:
            self._tail = b""

    def text(self) -> str:
        self._thread.join(self._SECONDS)  # a process that the child started may keep the pipe open
        with self._lock:
            return self._tail.decode(errors="replace")

    def _pump(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        with self._pipe as pipe:
            while data := os.read(pipe.fileno(), self._CHUNK_BYTES):
                with self._lock:
                    self._tail = (self._tail + data)[-self._MOST_BYTES :]
                if not self._is_shown:
                    continue
                parts = decoder.decode(data).split("\r")  # progress bars begin with it
                content = "\r".join(map(visible, parts)).encode()  # also what native libraries write
                with contextlib.suppress(OSError):  # our own standard error may be closed
                    while content:
                        content = content[os.write(2, content) :]


class Child:
    """A process of ours that takes lines of JSON and tells others. It ends when its standard input closes.

    Args:
        take: Called in a thread with each message, and with None once the child tells no more.
        is_apart: Whether its standard error is not shown, and a terminal's Ctrl-C does not reach it.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], take: Callable[[Any], object],
        *, is_apart: bool = False,
    ) -> None:  # fmt: skip
        self.process = subprocess.Popen[bytes](
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
            process_group=0 if is_apart else None,
        )  # fmt: skip
        self.errors = ErrorTail(opened(self.process.stderr), is_shown=not is_apart)
        self.reader = threading.Thread(target=self._read, args=(take,), name="child", daemon=True)
        self.reader.start()

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            pipe = opened(self.process.stdin)
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()

    def _read(self, take: Callable[[Any], object]) -> None:
        with opened(self.process.stdout) as pipe:
            for line in pipe:
                try:
                    take(json.loads(line))
                except (ValueError, AttributeError, KeyError, TypeError):
                    _log.warning("not a message of a child: %r", line[:200])
        take(None)

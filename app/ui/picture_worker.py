"""The main module of the process that decodes pictures. `picture_process` starts it; no module imports it.

It reads a line of JSON for each picture and answers with another, followed by the bytes of a PNG file if the
picture can be used. A decoder that takes too much time or memory, or crashes, ends only this process.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from app.jobs.stdio import take_stdin, take_stdout
from diffusers_helper.errors import InputError
from diffusers_helper.picture import load_picture, plain_png, size_of


def main() -> None:
    """Decode pictures until standard input ends. The argument is the limit of memory in bytes."""
    memory = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, whose end closes our input
    for limit, value in (
        (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
    ):  # fmt: skip
        resource.setrlimit(limit, (value, value))
    commands, answers = take_stdin(), take_stdout()
    for line in commands:
        command = json.loads(line)
        _limit_time(command["seconds"])
        answer, png = _decode(Path(command["path"]), command["most_pixels"], memory)
        answers.write(json.dumps(answer | {"bytes": len(png)}).encode() + b"\n" + png)


def _limit_time(seconds: int) -> None:
    """Let the system end this process after this many further seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    end = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))


def _decode(path: Path, most_pixels: int, memory: int) -> tuple[dict[str, Any], bytes]:
    try:
        width, height = size_of(path)
        if width * height > most_pixels:
            return {"is_larger": True}, b""
        used = load_picture(path)
        if (width > height) != (used.width > used.height):  # the file says that the camera was held upright
            width, height = height, width
        return {"size": [width, height, used.width, used.height]}, plain_png(used)
    except InputError as error:
        # A person knows the file's name, but not the folder that it was uploaded to.
        return {"error": [error.message.replace(str(path), path.name), error.remedy]}, b""
    except MemoryError:
        return {"is_too_much": f"{memory >> 20} MiB of memory"}, b""


if __name__ == "__main__":
    main()

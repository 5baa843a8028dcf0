"""The main module of the process that reads files of unknown origin, which `process` starts.

It reads a line of JSON for each file and answers with another. A reader that takes too much time or memory,
or crashes, ends only this process.
"""

import json
import select
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from app.jobs.stdio import take_stdin, take_stdout
from app.reading.values import result_of
from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine.limits import limit_process, limit_time
from diffusers_helper.machine.signals import ignore_ctrl_c

_IDLE_SECONDS = 60.0


def main() -> None:
    """Read files by a module's readers, in so many bytes of memory, until input ends or no question comes."""
    ignore_ctrl_c()  # it is for the server, whose end closes our input
    readers = import_module(sys.argv[1])
    limit_process(int(sys.argv[2]))
    questions, answers = take_stdin(), take_stdout()
    # Each question is answered before the next one comes, so none waits unseen in the buffer.
    while select.select([questions], [], [], _IDLE_SECONDS)[0] and (line := questions.readline()):
        question = json.loads(line)
        limit_time(question["seconds"])
        answers.write(_answer(getattr(readers, question["reader"]), question["arguments"]) + b"\n")


def _answer(reader: Callable[..., Any], arguments: dict[str, Any]) -> bytes:
    types = get_type_hints(reader)
    try:
        values = {name: TypeAdapter(types[name]).validate_python(value) for name, value in arguments.items()}
        return result_of(reader).dump_json((reader(**values),))
    except LongtakeError as error:
        facts = {name: getattr(error, name) for name in ("message", "remedy", "setting", "code")}
        return json.dumps({"kind": type(error).__name__, "error": facts}).encode()
    except OSError as error:
        return json.dumps({"errno": error.errno, "strerror": error.strerror}).encode()
    except MemoryError:
        return b'{"is_too_much": true}'


if __name__ == "__main__":
    main()

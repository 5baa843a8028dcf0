"""The main module of the process that reads files of unknown origin, which `process` starts.

It reads a line of JSON for each file and answers with another, followed by the bytes in the answer. A reader
that takes too much time or memory, or crashes, ends only this process.
"""

from __future__ import annotations

import json
import select
import sys
from typing import Any, get_type_hints

from app.jobs.stdio import take_stdin, take_stdout
from app.reading.pictures import read_picture
from app.reading.values import from_data, to_data
from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.conditions.picture import read_as_png, read_small, size_of
from diffusers_helper.conditions.prompts import count_tokens
from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine.limits import limit_process, limit_time
from diffusers_helper.machine.signals import ignore_ctrl_c
from diffusers_helper.models.installed import origin_at
from diffusers_helper.models.sizes import count_values, layers_of
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.weights.inspection import inspect_weights
from diffusers_helper.weights.lora_files import read_lora_file, read_lora_triggers

READERS = {
    reader.__name__: reader
    for reader in (
        read_picture, size_of, read_as_png, read_small, read_footage, read_recipe, inspect_weights, origin_at,
        read_lora_triggers, read_lora_file, layers_of, count_values, count_tokens,
    )
}  # fmt: skip
_IDLE_SECONDS = 60.0


def main() -> None:
    """Read files until input ends or no question comes. The argument is the limit of memory in bytes."""
    ignore_ctrl_c()  # it is for the server, whose end closes our input
    limit_process(int(sys.argv[1]))
    questions, answers = take_stdin(), take_stdout()
    # Each question is answered before the next one comes, so none waits unseen in the buffer.
    while select.select([questions], [], [], _IDLE_SECONDS)[0] and (line := questions.readline()):
        question = json.loads(line)
        blobs = list[bytes]()
        limit_time(question["seconds"])
        answer = _answer(question["reader"], question["arguments"], blobs)
        answer["bytes"] = [len(blob) for blob in blobs]
        answers.write(b"".join([json.dumps(answer).encode(), b"\n", *blobs]))


def _answer(name: str, arguments: dict[str, Any], blobs: list[bytes]) -> dict[str, Any]:
    reader: Any = READERS[name]
    types = get_type_hints(reader)
    try:
        values = {key: from_data(value, types[key], ()) for key, value in arguments.items()}
        return {"result": to_data(reader(**values), blobs)}
    except LongtakeError as error:
        facts = {name: getattr(error, name) for name in ("message", "remedy", "setting", "code")}
        return {"kind": type(error).__name__, "error": facts}
    except OSError as error:
        return {"errno": error.errno, "strerror": error.strerror}
    except MemoryError:
        return {"is_too_much": True}


if __name__ == "__main__":
    main()

"""The main module of the process that reads files of unknown origin, which `process` starts.

It reads a line of JSON for each file and answers with another. A reader that takes too much time or memory,
or crashes, ends only this process.
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from app.jobs.stdio import take_stdin, take_stdout
from app.reading.pictures import read_picture
from app.reading.values import result_of
from diffusers_helper.conditions.footage import read_footage
from diffusers_helper.conditions.picture import read_as_png, read_small, size_of
from diffusers_helper.conditions.prompts import count_tokens, largest_token
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
        read_lora_triggers, read_lora_file, layers_of, count_values, count_tokens, largest_token,
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
        limit_time(question["seconds"])
        answers.write(_answer(READERS[question["reader"]], question["arguments"]) + b"\n")


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

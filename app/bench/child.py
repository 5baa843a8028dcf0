"""The process of one part of the benchmark: `python -m app.bench.child`.

The task comes as a line of JSON on stdin; what is measured goes as lines of JSON to stdout, case by case. The
process ends when stdin is closed.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from app.jobs.stdio import end_with, prepare_streams, take_stdin, take_stdout, write_whole
from app.machine import load_added_models
from diffusers_helper.errors import LongtakeError, first_line
from diffusers_helper.library_errors import trouble_of
from diffusers_helper.machine.signals import end_with_parent

# The device can no longer be used; the runner starts another process for the remaining cases.
EXIT_LOST = 3
_OUT_OF_MEMORY = {"device_memory": "out of memory", "host_memory": "out of main memory"}


def function_of(name: str) -> Callable[[Any], Iterable[tuple[str, Any]]]:
    """Return the function of a part, given as `parts.Part.function`."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"diffusers_helper.bench.{module}"), function)


def outcome(work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """Return the figures of a case, or why it failed, and whether the device is lost."""
    try:
        return {"figures": work()}, False
    except LongtakeError as error:
        found, is_lost = error.message, False
    except Exception as error:  # noqa: BLE001 - a failure is the result of its case, whatever it is
        trouble = trouble_of(error)
        found = _OUT_OF_MEMORY.get(trouble or "", f"{type(error).__name__}: {first_line(error)}")
        is_lost = trouble == "device"
    return {"failed": found}, is_lost


def measure(task: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> int:
    """Measure the cases of a part that are not in `skip`, and return the exit code."""
    import torch

    from diffusers_helper.bench.context import Context

    context = Context(task["level"], Path(task["folder"]), dict(os.environ), task["model"])
    for label, work in function_of(task["function"])(context):
        if label in task["skip"]:
            continue
        if isinstance(work, str):
            send({"case": label, "skipped": work})
            continue
        send({"begin": label})
        found, is_lost = outcome(work)
        send({"case": label, **found})
        if is_lost:
            return EXIT_LOST
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    send({"over": True})
    return 0


def main() -> None:
    """Take the task, measure it, and end at once."""
    end_with_parent()  # even if native code keeps the thread below from running
    prepare_streams()
    answers, orders = take_stdout(), take_stdin()
    task = json.loads(orders.readline())
    end_with(orders.fileno())
    load_added_models()

    code = measure(task, lambda told: write_whole(answers, json.dumps(told).encode() + b"\n"))
    os._exit(code)  # an ordinary end may hang in a native library


if __name__ == "__main__":
    main()

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
from app.machine import know_added_models
from diffusers_helper.errors import LongtakeError, first_line
from diffusers_helper.foreign_errors import trouble_of
from diffusers_helper.machine.signals import end_with_parent

_OUT_OF_MEMORY = {"device_memory": "out of memory", "host_memory": "out of main memory"}


def function_of(name: str) -> Callable[[Any], Iterable[tuple[str, Any]]]:
    """Import the function that `BenchPart.function` names."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"diffusers_helper.bench.{module}"), function)


def outcome(work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """Measure a case; return its figures or why it failed, and whether the device is lost."""
    try:
        return {"figures": work()}, False
    except LongtakeError as error:
        return {"failed": error.message}, False
    except Exception as error:  # noqa: BLE001 - a failure is the result of its case, whatever it is
        trouble = trouble_of(error)
        reason = _OUT_OF_MEMORY.get(trouble or "", f"{type(error).__name__}: {first_line(error)}")
        return {"failed": reason}, trouble == "device"


def measure(task: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Measure the cases of a part that are not in `skip`, up to one that loses the device."""
    import torch

    from diffusers_helper.bench.context import Context

    context = Context(task["is_quick"], Path(task["folder"]), dict(os.environ), task["model"])
    for label, work in function_of(task["function"])(context):
        if label in task["skip"]:
            continue
        if isinstance(work, str):
            send({"case": label, "skipped": work})
            continue
        send({"begin": label})
        result, is_lost = outcome(work)
        send({"case": label, **result})
        if is_lost:
            return
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    send({"over": True})


def main() -> None:
    end_with_parent()  # even if native code keeps the thread below from running
    prepare_streams()
    answers, orders = take_stdout(), take_stdin()
    task = json.loads(orders.readline())
    end_with(orders.fileno())
    know_added_models()
    measure(task, lambda message: write_whole(answers, json.dumps(message).encode() + b"\n"))
    os._exit(0)  # an ordinary end may hang in a native library


if __name__ == "__main__":
    main()

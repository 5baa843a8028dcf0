"""The cases of one part of the benchmark, measured one after the other."""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from diffusers_helper.bench.context import Case, Context, Figures
from diffusers_helper.errors import LongtakeError, first_line
from diffusers_helper.library_errors import trouble_of

_OUT_OF_MEMORY = {"device_memory": "out of memory", "host_memory": "out of main memory"}


def function_of(name: str) -> Callable[[Context], Iterable[Case]]:
    module, _, function = name.partition(":")
    return getattr(import_module(f".{module}", __package__), function)


def measure_cases(
    environ: Mapping[str, str], function: str, is_quick: bool, model: str, folder: str, done: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Measure the cases of a part, but for those that are done, up to one that loses the device.

    Yields:
        `begin` with the label of a case; then `case` with its label, and `figures`, or why it has `failed` or
        was `skipped`; and `over` after the last one.
    """
    context = Context(is_quick, Path(folder), environ, model)
    for label, work in function_of(function)(context):
        if label in done:
            continue
        if isinstance(work, str):
            yield {"case": label, "skipped": work}
            continue
        yield {"begin": label}
        result, is_lost = _outcome(work)
        yield {"case": label, **result}
        if is_lost:
            return
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    yield {"over": True}


def _outcome(work: Callable[[], Figures]) -> tuple[dict[str, Any], bool]:
    try:
        return {"figures": work()}, False
    except LongtakeError as error:
        return {"failed": error.message}, False
    except Exception as error:  # noqa: BLE001 - a failure is the result of its case, whatever it is
        trouble = trouble_of(error)
        reason = _OUT_OF_MEMORY.get(trouble or "", f"{type(error).__name__}: {first_line(error)}")
        return {"failed": reason}, trouble == "device"

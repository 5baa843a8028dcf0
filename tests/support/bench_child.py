"""A stand-in for the processes of the benchmark: the real one with other parts, and without torch."""

import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app import probe

MIB = 2**20
Case = tuple[str, Callable[[], dict[str, Any]] | str]


def good(context: Any) -> Iterator[Case]:
    yield "one", lambda: {"value": 1.23456789, "planned_bytes": 1300 * MIB, "measured_bytes": 1000 * MIB}
    yield (
        "two",
        lambda: {"infinite": float("inf"), "stages": {"text": {"planned_bytes": 9, "measured_bytes": 9}}},
    )
    yield "three", "this card has no such kernel"


def out_of_memory(context: Any) -> Iterator[Case]:
    yield "too large", lambda: _fail("HIP out of memory. Tried to allocate 66.00 GiB.")
    yield "unknown", lambda: _fail(f"cannot open {Path.home()}/private/weights of {os.environ['LOGNAME']}")
    yield "small", lambda: {"value": 1}


def aborts(context: Any) -> Iterator[Case]:
    yield "before", lambda: {"value": 1}
    yield "deadly", _abort
    yield "after", lambda: {"value": 2}


def hangs(context: Any) -> Iterator[Case]:
    yield "endless", lambda: (signal.pause(), {})[1]


def dies_at_once(context: Any) -> Iterator[Case]:
    os._exit(7)
    yield "never", {}


def waits(context: Any) -> Iterator[Case]:
    """Note each run of the first case in a file, and wait in the second one for the file `go`."""
    notes = Path(os.environ["NOTES"])
    yield "first", lambda: {"runs": notes.open("a").write("x")}
    yield "second", lambda: {"value": 2} if (notes.parent / "go").exists() else (signal.pause(), {})[1]


def _abort() -> dict[str, Any]:
    os.write(2, b"HSA: BlockAllocator::alloc failed\n")
    os.abort()


def _fail(text: str) -> dict[str, Any]:
    raise RuntimeError(text)


if __name__ == "__main__":
    torch: Any = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    context: Any = types.ModuleType("context")
    context.Case = context.Figures = Any
    context.Context = lambda *facts: facts
    sys.modules |= {"torch": torch, "diffusers_helper.bench.context": context}
    from diffusers_helper.bench import cases

    cases.function_of = lambda name: globals()[name]
    probe.main()

"""The trial of ways to compute an operation on this device: their time, their memory and their error.

A way may end the process or halt it, so trials run in a process of their own.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from cache.conv import MEMORY_TROUBLES
from diffusers_helper.errors import first_line
from diffusers_helper.library_errors import memory_sizes, trouble_of

RUNS = 3
_ENOUGH_SECONDS = 2.0  # after which a slow way is not timed again


@dataclass(frozen=True)
class TrialWork:
    """An operation with inputs, and some parts of its results as computed in fp32.

    Attributes:
        prepared: Opens a way by its name, and yields what computes the results, and the kernel's name.
        expected: The parts: the number of the result, the index in it, and the values.
        max_error: The largest ratio of the error's root mean square to that of the result. It is about 1 for
            a wrong result.
    """

    prepared: Callable[[str], AbstractContextManager[tuple[Callable[[], Sequence[Tensor]], str]]]
    expected: Sequence[tuple[int, Any, Tensor]]
    max_error: float


@torch.inference_mode()
def try_candidates(
    tasks: Iterable[tuple[Callable[[], TrialWork], Iterable[str]]],
) -> Iterator[dict[str, Any]]:
    """Yield for each way of each work its milliseconds, error and bytes, or why it cannot be used.

    A reason that may be gone at the next trial, such as a lack of memory, is marked by `passes`. After an
    error that may stop the device, another process has to try the remaining ones.
    """
    for make_work, candidates in tasks:
        work = None
        for candidate in candidates:
            try:
                work = work or make_work()
                with work.prepared(candidate) as (compute, kernel):
                    stores_scores = {"failed": f"it runs {kernel}, which stores the scores of all tokens"}
                    yield {"kernel": kernel} | (
                        stores_scores if "math" in kernel else _measured(work, compute)
                    )
            except Exception as error:  # noqa: BLE001 - whatever a kernel raises, the next one is tried
                yield {"failed": first_line(error), **_temporary_mark(error)}
                if trouble_of(error) == "device":
                    return
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()


def _temporary_mark(error: Exception) -> dict[str, bool]:
    """Mark an error that may be gone at the next trial. What is larger than the card never fits."""
    sizes = memory_sizes(str(error))
    is_too_large = sizes.get("tried", 0) > sizes.get("capacity", math.inf)
    return {"passes": True} if trouble_of(error) in MEMORY_TROUBLES and not is_too_large else {}


def _measured(work: TrialWork, compute: Callable[[], Sequence[Tensor]]) -> dict[str, Any]:
    has_gpu = torch.cuda.is_available()
    before_bytes = 0
    if has_gpu:
        torch.cuda.reset_peak_memory_stats()
        before_bytes = torch.cuda.memory_allocated()
    results = compute()
    peak_bytes = torch.cuda.max_memory_allocated() - before_bytes if has_gpu else 0
    error = max(_error(results[number][index], values) for number, index, values in work.expected)
    if not error <= work.max_error or not all(bool(result.isfinite().all()) for result in results):
        return {"failed": f"its results differ by {error:.2g} of their size"}
    seconds = list[float]()
    while len(seconds) < RUNS and sum(seconds) < _ENOUGH_SECONDS:
        start = time.perf_counter()
        compute()[0].flatten()[0].item()  # waits for the result
        seconds.append(time.perf_counter() - start)
    return {"milliseconds": 1000 * median(seconds), "error": error, "bytes": peak_bytes}


def _error(result: Tensor, expected: Tensor) -> float:
    difference = result.to(expected.device).float() - expected
    return (difference.square().mean() / expected.square().mean()).sqrt().item()

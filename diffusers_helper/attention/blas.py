"""The library that multiplies matrices on a GPU, and the work with which the trial chooses it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import linear

from cache.trial import TrialWork
from diffusers_helper.attention.backends import TORCHS_CHOICE

_NUM_ROWS = 16  # of the tokens whose results are compared
_MAX_ERROR = 0.1
_INPUTS_AND_OUTPUTS = ((1, 1), (1, 4), (4, 1), (5, 1))  # of a block's layers, in widths of the network


@contextmanager
def preferred_library(name: str) -> Iterator[None]:
    """Let torch take a library within the context; it raises an error for one that it was built without."""
    if name == TORCHS_CHOICE:
        yield
        return
    prefer = torch.backends.cuda.preferred_blas_library
    previous = prefer()
    try:
        prefer(name)
        yield
    finally:
        prefer(previous)


def blas_work(heads: int, tokens: int, head_dim: int, dtype: str, *, device: torch.device) -> TrialWork:
    torch.manual_seed(0)
    width = heads * head_dim
    values = torch.randn(tokens * 5 * width, device=device, dtype=getattr(torch, dtype))
    weights = [
        torch.randn(outputs * width, inputs * width, device=device).mul_(width**-0.5).to(values)
        for inputs, outputs in _INPUTS_AND_OUTPUTS
    ]
    inputs = [values[: tokens * weight.shape[1]].view(tokens, -1) for weight in weights]
    rows = torch.linspace(0, tokens - 1, _NUM_ROWS, device=device).long()

    @contextmanager
    def prepared(library: str) -> Iterator[tuple[Callable[[], Sequence[Tensor]], str]]:
        with preferred_library(library):
            # The other rows are freed before the next product.
            yield lambda: [linear(x, weight)[rows] for x, weight in zip(inputs, weights, strict=True)], ""

    expected = [linear(x[rows].float(), weight.float()) for x, weight in zip(inputs, weights, strict=True)]
    return TrialWork(prepared, [(n, slice(None), result) for n, result in enumerate(expected)], _MAX_ERROR)

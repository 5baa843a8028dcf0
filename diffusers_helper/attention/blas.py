"""The library that multiplies matrices on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from diffusers_helper.attention.backends import TORCHS_CHOICE


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

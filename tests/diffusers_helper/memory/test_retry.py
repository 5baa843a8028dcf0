"""Tests that failed work is repeated after its cure, once the tensors that the error held are freed."""

import weakref
from collections.abc import Callable

import pytest
import torch

from diffusers_helper.vae.engine import retry


def test_the_cure_runs_when_the_tensors_of_the_error_are_gone() -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def work() -> int:
        tensor = torch.zeros(4)
        held.append(weakref.ref(tensor))
        if len(held) < 3:
            raise RuntimeError(f"attempt {len(held)} {tensor.sum()}")
        return len(held)

    def cure_for(error: Exception) -> Callable[[], None]:
        text = str(error)
        assert text.startswith(f"attempt {len(held)} ")
        return lambda: alive.append(held[-1]() is not None)

    assert retry(work, cure_for) == 3
    assert alive == [False, False]


def test_an_error_without_a_cure_passes_and_so_does_one_of_the_cure() -> None:
    attempts: list[int] = []

    def work() -> None:
        attempts.append(1)
        raise ZeroDivisionError

    def worse() -> None:
        raise LookupError

    with pytest.raises(ZeroDivisionError):
        retry(work, lambda error: None)
    with pytest.raises(LookupError) as caught:
        retry(work, lambda error: worse)
    assert caught.value.__context__ is None
    assert len(attempts) == 2

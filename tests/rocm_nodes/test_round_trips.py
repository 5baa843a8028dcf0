"""Tests of the nodes that what they set comes back, and of numbers at which a choice changes."""

import pytest
import torch

from rocm_nodes.benchmark import _library


@pytest.mark.parametrize("name", ["hipblaslt", "hipblas", ""])
@pytest.mark.parametrize("fails", [False, True])
def test_a_library_that_is_measured_is_not_kept(
    name: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = "its own"

    def preferred(chosen: str | None = None) -> str:
        nonlocal now
        now = chosen or now
        return now

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", preferred)
    try:
        with _library(name):
            assert now == {"hipblaslt": "cublaslt", "hipblas": "cublas", "": "its own"}[name]
            assert not fails
    except AssertionError:
        assert fails
    assert now == "its own"

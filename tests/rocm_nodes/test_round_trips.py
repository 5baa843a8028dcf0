"""Tests of the nodes that what they set comes back, and of numbers at which a choice changes."""

from types import SimpleNamespace

import pytest
import torch

from rocm_nodes.benchmark import _library
from rocm_nodes.vae_nodes import CHUNKS, _window_chunk


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


@pytest.mark.parametrize("compression", [4, 8])
def test_a_window_of_time_is_the_largest_that_the_size_allows(compression: int) -> None:
    vae = SimpleNamespace(
        first_stage_model=None, temporal_compression_decode=lambda: compression
    )  # fmt: skip
    for size in range(8, 400, 4):
        window = max(3, size // compression)
        assert _window_chunk(vae, torch.zeros(1, 4, window, 1, 1), size) is None
        chunk = _window_chunk(vae, torch.zeros(1, 4, window + 1, 1, 1), size)
        assert chunk == {3: 1, 4: 2, 5: 2}.get(window, 4 if window < 10 else 8)
    assert CHUNKS == (1, 2, 4, 8)

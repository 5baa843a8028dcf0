"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before torch is imported, and inherited by the engines that tests start: on networks this small a second
# thread gains nothing, and on busy cores the threads' waiting for each other makes them many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete tiny model, made once. Read-only by agreement."""
    from tests.support.tiny_model import write_tiny_model  # torch: only for the tests that ask for a model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return folder

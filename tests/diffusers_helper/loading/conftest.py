"""Fixtures for the tests of loading."""

from pathlib import Path

import pytest

from tests.support.mid_model import Size, write_mid_model


@pytest.fixture(scope="session")
def mid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose weights and activations both take memory. Tests only read it."""
    folder = tmp_path_factory.mktemp("models") / "mid"
    return write_mid_model(folder, Size(dual=2, single=4, channels=8))

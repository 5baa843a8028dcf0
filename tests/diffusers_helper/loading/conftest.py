"""Fixtures for the tests of loading."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from torch import Tensor

from diffusers_helper.loading.loaders import Models
from tests.support.checkpoints import write_safetensors
from tests.support.making import add_model
from tests.support.mid_model import Size, write_mid_model


@pytest.fixture(scope="session")
def mid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose weights and activations both take memory. Tests only read it."""
    folder = tmp_path_factory.mktemp("models") / "mid"
    return write_mid_model(folder, Size(dual=2, single=4, channels=8))


@pytest.fixture
def add(deep_model: Path, tmp_path: Path) -> Callable[..., Models]:
    """Return a function that adds a model with parts from these files, or with these tensors."""

    def added(name: str = "mine", **parts: Path | Mapping[str, Tensor]) -> Models:
        file = tmp_path / f"{name}.safetensors"
        files = {
            part: content if isinstance(content, Path) else write_safetensors(file, content)
            for part, content in parts.items()
        }
        return add_model(deep_model, name, **files)

    return added

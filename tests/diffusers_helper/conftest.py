"""Fixtures for the tests of the library."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diffusers_helper.models.added import ADDED_MODELS

if TYPE_CHECKING:
    from torch import Tensor

    from diffusers_helper.loading.loaders import Models
    from diffusers_helper.pipeline import Result
    from diffusers_helper.request import GenerationRequest


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "models.json")


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.fixture(scope="module")
def models(tiny_model: Path) -> Models:
    from tests.support.making import load_tiny

    return load_tiny(tiny_model)


@pytest.fixture(scope="module")
def whole(order: GenerationRequest, models: Models, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return an uninterrupted job of the module's request. Tests only read it."""
    from tests.support.making import make

    return make(order, models, tmp_path_factory.mktemp("jobs") / "whole")[0]


@pytest.fixture(scope="module")
def weights(deep_model: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(deep_model / "transformer" / "diffusion_pytorch_model.safetensors")

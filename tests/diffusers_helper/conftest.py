"""Fixtures for the tests of the library."""

from pathlib import Path

import pytest

from diffusers_helper.models.added import ADDED_MODELS


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the models that a test adds in a list of its own."""
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "models.json")

"""Fixtures for the tests that download a model from a local double of the hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diffusers_helper.models.registry import find_model
from tests.support.hub import Hub, light_hub


@pytest.fixture
def lit_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, Path]]:
    """Provide a hub with light files of FramePack F1, and the empty cache of this machine."""
    with light_hub(tmp_path, find_model("framepack-f1"), monkeypatch) as found:
        yield found

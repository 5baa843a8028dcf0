"""Fixtures for the tests of plans."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's models be planned as they were published, whatever is on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "no hub"))

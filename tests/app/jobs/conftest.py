"""The fixture that most tests of jobs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs import STAND_IN, Studio


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Studio]:
    """Provide a service over the stand-in engine, not started yet, and stop it after the test."""
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    monkeypatch.setattr("app.jobs.making.worker._RETRY_SECONDS", 0.1)
    studio = Studio(tmp_path)
    yield studio
    studio.service.stop()

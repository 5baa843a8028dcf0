"""The fixtures that most tests of jobs share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_engine import Forks
from tests.support.jobs import STAND_IN, Studio
from tests.support.warm_engine import WarmEngine


@pytest.fixture(scope="module", autouse=True)
def forked_engines(forks: Forks) -> Iterator[None]:
    """Have the engines that these tests start forked: importing their libraries takes most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        forks.replace(patch)
        yield


@pytest.fixture(scope="session")
def warm_engine() -> Iterator[WarmEngine]:
    """Provide a stand-in engine that the tests share, since its start takes longer than its jobs."""
    engine = WarmEngine()
    yield engine
    engine.end()


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_engine: WarmEngine) -> Iterator[Studio]:
    """Provide a service over the shared engine, not started yet, and stop it after the test."""
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    monkeypatch.setattr("app.jobs.making.worker._RETRY_SECONDS", 0.1)
    monkeypatch.setattr("app.jobs.making.crew._RETRY_SECONDS", 0.1)
    studio = Studio(tmp_path, warm_engine)
    yield studio
    studio.service.stop()

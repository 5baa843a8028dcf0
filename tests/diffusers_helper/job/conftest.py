"""The fixture that the tests of a job's memory share."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from diffusers_helper.memory.store import Store


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Store]]:
    """Collect all stores that jobs make, and check them after the test."""
    made: list[Store] = []

    class Seen(Store):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr("diffusers_helper.job.memory.Store", Seen)
    yield made
    assert made
    for store in made:
        assert store.device.allocated_bytes() == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "weights"]

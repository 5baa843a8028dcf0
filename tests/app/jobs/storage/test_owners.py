"""Tests of the lock by which a program owns jobs."""

from pathlib import Path

import pytest

from app.jobs.storage import owners
from app.jobs.storage.owners import JobOwner, standing_of


def test_two_threads_that_end_at_once_give_one_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = JobOwner(tmp_path)
    name = owner.enter()
    assert standing_of(tmp_path, name) == "alive"
    lock_file = owners._lock_file

    def interrupted(folder: Path, held: str) -> Path:
        monkeypatch.setattr(owners, "_lock_file", lock_file)
        owner.leave()  # the other thread comes in between
        return lock_file(folder, held)

    monkeypatch.setattr(owners, "_lock_file", interrupted)
    owner.leave()
    assert owner.name == ""
    assert list(tmp_path.iterdir()) == []
    assert standing_of(tmp_path, name) == "dead"
    assert owner.enter() != name
    owner.leave()

"""Tests that the engines of the tests in this folder are forked, which makes them start quickly."""

from pathlib import Path

from app.jobs.making.engine_client import EngineProcess


def test_an_engine_is_a_fork_of_the_process_with_the_libraries() -> None:
    engine = EngineProcess()
    engine.start()
    assert "forking.py" in Path(f"/proc/{engine.pid}/cmdline").read_text(encoding="utf-8")
    engine.close()

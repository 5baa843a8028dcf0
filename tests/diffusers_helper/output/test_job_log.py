"""Tests of a job's log: its bound, its runs, and what happens where it cannot be written."""

import logging
from pathlib import Path

import pytest

from diffusers_helper.runner import MAX_LOG_BYTES, job_log

_log = logging.getLogger("diffusers_helper.test")


def test_the_log_is_bounded_and_keeps_its_end(tmp_path: Path) -> None:
    file = tmp_path / "job.log"
    with job_log(file):
        for number in range(12_000):
            _log.info("line %d of a job that has much to say about its convolutions", number)
    with job_log(file):
        _log.info("the next run")
    text = file.read_text(encoding="utf-8")
    assert MAX_LOG_BYTES / 3 < len(text.encode()) <= MAX_LOG_BYTES
    first, second, *_, before, last = text.splitlines()
    assert first == "(earlier lines were removed)"
    assert second.endswith("about its convolutions")
    assert "INFO line 11999 of" in before
    assert last.endswith("INFO the next run")


def test_a_second_run_of_a_job_appends(tmp_path: Path) -> None:
    for run in ("first", "second"):
        with job_log(tmp_path / "job.log"):
            _log.info("the %s run", run)
            _log.debug("too much")
        _log.info("between")
    lines = (tmp_path / "job.log").read_text(encoding="utf-8").splitlines()
    assert [line.partition("INFO ")[2] for line in lines] == ["the first run", "the second run"]


def test_a_log_that_cannot_be_written_ends_no_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with job_log(tmp_path / "missing" / "job.log"):
        _log.info("nobody reads this")
    assert not (tmp_path / "missing").exists()
    assert capfd.readouterr().err == ""


def test_levels_are_as_before(tmp_path: Path) -> None:
    before = [logging.getLogger(name).level for name in ("diffusers_helper", "cache")]
    with pytest.raises(KeyError), job_log(tmp_path / "job.log"):
        raise KeyError
    assert [logging.getLogger(name).level for name in ("diffusers_helper", "cache")] == before
    assert not logging.getLogger("diffusers_helper").handlers


def test_a_log_on_a_full_disk_ends_without_an_error() -> None:
    with job_log(Path("/dev/full")):
        logging.getLogger("diffusers_helper").info("lost")

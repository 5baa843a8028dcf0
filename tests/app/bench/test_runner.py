"""Tests of the benchmark's runner, with stand-ins for its parts."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from app.bench import runner
from app.bench.report import failures, planned_peaks
from app.bench.runner import BenchRun
from app.bench.table import PARTS
from diffusers_helper.units import GB
from tests.support.bench_runs import FACTS, new_report, run
from tests.support.jobs import ROOT


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "annelise").mkdir()
    for name, value in {
        "HOME": str(tmp_path / "annelise"),
        "LOGNAME": "annelise",
        "HF_TOKEN": "hf_12345678",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("socket.gethostname", lambda: "annes-tower")


def test_figures_reasons_and_wrong_plans_are_in_the_report(tmp_path: Path) -> None:
    report = run(tmp_path / "out", {"bus": "good"})
    part = report["parts"]["bus"]
    assert part["cases"]["one"]["figures"]["value"] == 1.2346
    assert part["cases"]["two"]["figures"]["infinite"] is None
    assert part["cases"]["three"] == {"skipped": "this card has no such kernel"}
    assert report["is_complete"]
    assert [(row["case"], row["ratio"], row["is_off"]) for row in planned_peaks(report)] == [
        ("one", 1.3, True), ("two, text", 1.0, False),
    ]  # fmt: skip
    assert not (tmp_path / "out" / "files").exists()


def test_a_lack_of_memory_is_a_result_and_no_private_word_is_left(tmp_path: Path) -> None:
    report = run(tmp_path / "out", {"bus": "out_of_memory"})
    cases = report["parts"]["bus"]["cases"]
    assert cases["too large"] == {"failed": "out of memory"}
    assert cases["small"] == {"figures": {"value": 1}}
    assert cases["unknown"]["failed"].startswith("RuntimeError: cannot open <home>")
    text = (tmp_path / "out" / "report.json").read_text(encoding="utf-8").lower()
    for word in ("annelise", "annes-tower", "hf_1234", str(tmp_path).lower()):
        assert word not in text, word


def test_an_abort_is_the_result_of_its_case_and_the_part_goes_on(tmp_path: Path) -> None:
    report = run(tmp_path / "out", {"bus": "aborts"})
    cases = report["parts"]["bus"]["cases"]
    assert cases["before"] == {"figures": {"value": 1}}
    words = "its process ended with -6 (HSA: BlockAllocator::alloc failed)"
    assert cases["deadly"] == {"failed": words}
    assert cases["after"] == {"figures": {"value": 2}}
    assert report["is_complete"]
    assert failures(report) == [f"bus: deadly: {words}"]


def test_a_hang_is_a_result_and_the_next_part_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PART_SECONDS", {"quick": 10})
    report = run(tmp_path / "out", {"bus": "hangs", "products": "good"})
    assert report["parts"]["bus"]["cases"]["endless"]["failed"].startswith("no answer within ")
    assert "one" in report["parts"]["products"]["cases"]
    assert not report["is_complete"]


def test_a_process_that_dies_at_once_is_not_tried_again(tmp_path: Path) -> None:
    part = run(tmp_path / "out", {"bus": "dies_at_once"})["parts"]["bus"]
    assert (part["reason"], part["cases"]) == ("its process ended with 7", {})


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"kinds": ("cuda",)}, "it is for AMD cards"),
        ({"ram_bytes": 0, "disk_bytes": 10**9 * GB}, "GB of free disk space; there are"),
        ({"ram_bytes": 10**6 * GB}, "GB of free main memory; there are"),
        ({"ram_bytes": 0, "device_bytes": 25 * GB}, "it needs 25 GB of memory of the card; there are 24 GB"),
    ],
)
def test_a_part_that_cannot_run_is_left_out_with_its_reason(
    tmp_path: Path, needs: dict[str, Any], reason: str
) -> None:
    part = run(tmp_path / "out", {"bus": "good"}, needs=needs)["parts"]["bus"]
    assert reason in part["reason"]
    assert part["cases"] == {}


def test_a_machine_without_a_gpu_says_so(tmp_path: Path) -> None:
    card = {**FACTS["card"], "kind": "cpu"}
    part = run(tmp_path / "out", {"bus": "good"}, needs={"kinds": ("rocm", "cuda")}, card=card)
    assert part["parts"]["bus"]["reason"] == "there is no GPU"


def test_a_killed_run_leaves_a_valid_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "tests.support.bench_runs", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as running:
        assert [running.stdout.readline() for _ in range(2)] == ["first\n", "second\n"]
        running.send_signal(signal.SIGKILL)
    report = json.loads((out / "report.json").read_text())
    assert report["parts"]["bus"]["cases"] == {"first": {"figures": {"runs": 1}}}
    assert not report["is_complete"]


def test_each_run_measures_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    (tmp_path / "go").touch()
    for number in (1, 2):
        report = run(tmp_path / "out", {"bus": "waits"})
        assert set(report["parts"]["bus"]["cases"]) == {"first", "second"}
        assert (tmp_path / "notes").read_text(encoding="utf-8") == number * "x"


def test_no_part_begins_after_the_time_of_all(tmp_path: Path) -> None:
    measuring = BenchRun(tmp_path, "", os.environ, new_report(), lambda report: None, show=lambda line: None)
    with patch.dict(PARTS, {"bus": replace(PARTS["bus"], ram_bytes=0)}):
        measuring.run(["bus"], time.monotonic())
    assert measuring.report["parts"]["bus"]["reason"] == "no time was left for the remaining cases"
    assert not measuring.report["is_complete"]

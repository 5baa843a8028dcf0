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
from syrupy.assertion import SnapshotAssertion

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


NEEDS: dict[str, dict[str, Any]] = {
    "another maker": {"kinds": ("cuda",)}, "disk": {"ram_bytes": 0, "disk_bytes": 10**9 * GB},
    "memory": {"ram_bytes": 10**6 * GB}, "device": {"ram_bytes": 0, "device_bytes": 25 * GB},
    "a GPU": {"kinds": ("rocm", "cuda")},
}  # fmt: skip


def test_what_a_run_leaves_in_its_report(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines = dict[str, Any]()
    for kind in ("good", "out_of_memory", "aborts", "dies_at_once"):
        report = run(tmp_path / kind, {"bus": kind})
        part = report["parts"]["bus"]
        lines[kind] = [f"{label}: {case}" for label, case in part["cases"].items()]
        lines[kind].append(f"{part['reason']!r}, {report['is_complete']}, {failures(report)}")
        lines[kind] += map(str, planned_peaks(report))
        assert not (tmp_path / kind / "files").exists()
        text = (tmp_path / kind / "report.json").read_text(encoding="utf-8").lower()
        for word in ("annelise", "annes-tower", "hf_1234", str(tmp_path).lower()):
            assert word not in text, word
    for name, needs in NEEDS.items():
        card = FACTS["card"] | {"kind": "cpu" if name == "a GPU" else FACTS["card"]["kind"]}
        part = run(tmp_path / name, {"bus": "good"}, needs=needs, card=card)["parts"]["bus"]
        reason = part["reason"] if name == "device" else part["reason"].partition(";")[0]
        lines[name] = f"{part['cases']} {reason}"
    assert lines == snapshot


def test_a_hang_is_a_result_and_the_next_part_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PART_SECONDS", {"quick": 10})
    report = run(tmp_path / "out", {"bus": "hangs", "products": "good"})
    assert report["parts"]["bus"]["cases"]["endless"]["failed"].startswith("no answer within ")
    assert "one" in report["parts"]["products"]["cases"]
    assert not report["is_complete"]


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

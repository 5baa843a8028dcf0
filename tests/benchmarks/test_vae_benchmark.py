"""Tests that `benchmarks/vae_decode.py` runs as documented and reports what it measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.vae_decode import DecodeRow, chart, target_line, targets

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "vae_decode.py"


@pytest.mark.slow
def test_figures_and_chart_of_small_videos(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads((tmp_path / "out" / "vae_decode.json").read_text(encoding="utf-8"))
    assert result["complete"]
    rows = {(row["kind"], row["case"], row["way"]): row for row in result["rows"]}
    assert len(done.stdout.splitlines()) == len(rows) + 5
    assert result["error_rate"] == 0
    # Nothing of the targets' size and network was decoded, so that no time is held against them.
    reported = {target["name"]: (target["target"], target["measured"]) for target in result["targets"]}
    peak = max(row["peak_bytes"] for row in rows.values())
    assert reported == {
        "seconds for medium 17x320x320, WAN 2.2": (10, None),
        "seconds for two seconds 33x320x320, WAN 2.2": (5, None),
        "highest peak in bytes": (50 * 1024**3, peak), "share of failures": (0.01, 0),
    }  # fmt: skip
    assert "below 10; no target for what was decoded." in done.stdout
    assert all(row["target_seconds"] is None for row in rows.values())
    for (kind, case, way), row in rows.items():
        assert row["seconds"] > 0
        reference = rows[kind, case, "diffusers"]
        assert reference["psnr_db"] == "reference"
        # A single pass and a stream of any chunk size add the same numbers in the same order.
        is_exact = way == "engine" or (kind == "wan" and way.startswith("engine chunk"))
        assert row["psnr_db"] == "same bits" if is_exact else True
        if way == "engine bf16":
            assert "exact" not in row["plan"]
            assert "rounded as bf16" in row["plan"]
    assert "approximate" in rows["hunyuan", "short 9x64x64", "engine chunk 1"]["plan"]
    chart = ElementTree.parse(tmp_path / "out" / "vae_decode.svg").getroot()
    bars = [element for element in chart.iter() if element.tag.endswith("rect")]
    assert len(bars) == len(rows) + 1


def test_a_time_is_held_against_the_target_of_its_own_size_and_network() -> None:
    row = DecodeRow("wan", "two seconds 33x320x320", "engine", "", 4.0, 2**30, None, target_seconds=5.0)
    others = [replace(row, kind="hunyuan", seconds=1.0, target_seconds=None), replace(row, seconds=6.0)]
    found = {target["name"]: target["measured"] for target in targets([row, *others])}
    assert found["seconds for two seconds 33x320x320, WAN 2.2"] == 4.0
    assert found["seconds for medium 17x320x320, WAN 2.2"] is None
    assert "below 5; measured 4." in target_line(targets([row])[1])


@pytest.mark.slow
def test_ctrl_c_leaves_a_file_with_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--kinds", "hunyuan", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline(), running.stdout.readline()]
        written = json.loads((tmp_path / "vae_decode.json").read_text(encoding="utf-8"))
        assert not written["complete"]
        assert [row["way"] for row in written["rows"]][:2] == ["diffusers", "diffusers tiled"]
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate()
    assert running.returncode == 130
    assert f"Interrupted. What was measured is kept in {tmp_path / 'vae_decode.json'}." in errors
    result = json.loads((tmp_path / "vae_decode.json").read_text(encoding="utf-8"))
    reported = [line for line in [*lines, *rest.splitlines()] if line.startswith("hunyuan")]
    assert len(reported) == len(result["rows"]) < 28
    assert not result["complete"]
    assert ElementTree.parse(tmp_path / "vae_decode.svg").getroot() is not None


def test_a_file_without_any_row_is_valid() -> None:
    assert {target["measured"] for target in targets([])} == {None, 0}
    assert ElementTree.fromstring(chart([])).tag.endswith("svg")

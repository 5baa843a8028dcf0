"""Tests that `benchmarks/conv_ladder.py` runs as documented and reports what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cache.conv_rungs import RUNGS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "conv_ladder.py"


@pytest.mark.slow
def test_figures_for_a_small_decode(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--json", "--size", "16", "--latents", "1", "--repeat", "2"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode in (0, 1)  # a decode this small may cost more than its convolutions
    figures = json.loads(done.stdout)
    assert {name: len(seconds) for name, seconds in figures["seconds"].items()} == {"plain": 2, "ladder": 2}
    assert figures["calls"] > 20
    share = figures["calls"] * figures["seconds_added_to_a_call"] / min(figures["seconds"]["plain"])
    assert abs(figures["share"] - share) < 1e-9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_rungs_of_a_small_decode_round_once(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--json", "--size", "16", "--latents", "2", "--repeat", "1"]
    command += ["--rungs", "bf16"]  # fp16 is emulated on most CPUs, and slow
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    rows = json.loads(done.stdout)
    assert [(row["dtype"], row["rung"]) for row in rows] == [
        ("bf16", rung) for rung in RUNGS if rung != "kitchen"
    ]
    assert all(row["milliseconds"] > 0 and row["shapes"] > 10 for row in rows)
    # A picture this small leaves few values, so that their mean varies.
    plain = max(1.0, rows[0]["roundings"])  # a processor without bf16 kernels may round more often
    assert all(0.5 < row["roundings"] < 1.3 * plain for row in rows), rows

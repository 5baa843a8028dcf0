"""Tests that `benchmarks/vae_decode.py` runs as documented and reports what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "vae_decode.py"


@pytest.mark.slow
def test_figures_and_chart_of_small_videos(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads((tmp_path / "out" / "vae_decode.json").read_text(encoding="utf-8"))
    rows = {(row["kind"], row["case"], row["way"]): row for row in result["rows"]}
    assert len(done.stdout.splitlines()) == len(rows) + 1
    assert (result["error_rate"], result["targets_not_tried"]) == (0.0, {"short 9x64x64": 10.0})
    for (kind, case, way), row in rows.items():
        assert row["seconds"] > 0
        reference = rows[kind, case, "diffusers"]
        assert reference["psnr_db"] == "reference"
        # A single pass and a stream of any chunk size add the same numbers in the same order.
        is_exact = way == "engine" or (kind == "wan" and way.startswith("engine chunk"))
        assert row["psnr_db"] == "same bits" if is_exact else True
    assert "approximate" in rows["hunyuan", "short 9x64x64", "engine chunk 1"]["plan"]
    chart = ElementTree.parse(tmp_path / "out" / "vae_decode.svg").getroot()
    bars = [element for element in chart.iter() if element.tag.endswith("rect")]
    assert len(bars) == len(rows) + 1

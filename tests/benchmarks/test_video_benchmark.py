"""Tests that `benchmarks/video_writer.py` runs as documented and counts what it claims to count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "video_writer.py"


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, check=True, cwd=folder, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.slow
def test_figures_for_a_small_clip(tmp_path: Path) -> None:
    result = json.loads(run(tmp_path, "--json", "--sections", "4", "--width", "48", "--height", "32"))
    assert result["settings"] == {"sections": 4, "width": 48, "height": 32, "crf": 16}
    assert set(result["runs"]) == {"inverted", "forward"}
    for mode, by_method in result["runs"].items():
        with_picture = int(mode == "forward")
        encoded = {
            method: by_method[method]["frames_encoded"] for method in ("one shot", "growing", "re-encode")
        }
        # All sections but the last have 33 provisional frames. The videos have 33, 69, 105 and 145 frames, or
        # one more each.
        assert encoded["one shot"] == 145
        assert encoded["growing"] == 145 + 3 * 33
        assert encoded["re-encode"] == sum((33, 69, 105)) + 3 * 4 * with_picture + 145
        for method in encoded:
            seconds = by_method[method]["seconds_per_section"]
            assert len(seconds) == (1 if method == "one shot" else 4)
            assert by_method[method]["seconds"] == pytest.approx(sum(seconds))
        assert by_method["times_less"] == pytest.approx(
            by_method["re-encode"]["seconds"] / by_method["growing"]["seconds"]
        )
    assert list(tmp_path.iterdir()) == []


def test_help_says_what_is_measured(tmp_path: Path) -> None:
    assert "encoding everything again after each section" in run(tmp_path, "--help")

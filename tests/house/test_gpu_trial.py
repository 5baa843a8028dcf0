"""Tests of the script that tries a GPU, as far as they need none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.layers import ROOT

SCRIPT = ROOT / "scripts/gpu_trial"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), "Which part?"), (("nonsense",), "Which part?"), (("tests", "--nonsense", "1"), "--nonsense")],
)
def test_a_wrong_call_ends_in_one_sentence(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    call = (str(SCRIPT), *arguments)
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1

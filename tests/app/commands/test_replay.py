"""Tests of the command `replay`, on the captures of a job that the program made with LONGTAKE_DEBUG=1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.layers import ROOT
from tests.support.making import write_scene
from tests.support.program import answer

pytestmark = pytest.mark.slow


def app(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app", *map(str, arguments)],
        env=os.environ | {"LONGTAKE_DEBUG": "1"}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_stage_of_a_job_is_run_again(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def replay(capture: Path) -> tuple[int, str, str]:
        return answer(capsys, "replay", str(capture))

    gone = tmp_path / "gone.json"
    code, _, err = replay(gone)
    assert (code, err.startswith(f"{gone} cannot be read (No such file or directory);")) == (2, True)
    picture, outputs = write_scene(tmp_path / "scene.png", 64, 64), tmp_path / "outputs"
    made = app(
        "generate", "--image", picture, "--prompt", "the red ball moves right", "--model", tiny_model,
        "--seconds", "1", "--steps", "2", "--seed", "3", "--outputs", outputs,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    captures = JobFolder(Path(made.stdout.splitlines()[-1]).parent).captures
    (file,) = (captures / "decode").glob("*.json")
    code, out, err = replay(file)
    assert code == 0, err
    assert out.startswith("decode: ")
    assert out.endswith("The results are the same, bit for bit.\n")
    assert list(captures.glob("decode/*.json")) == [file]  # the second run wrote none

    stored = file.with_suffix(".safetensors")
    tensors = load_file(stored)
    tensors["outputs"][0, 0, 0, 0] += 1
    save_file(tensors, stored)
    code, out, _ = replay(file)
    assert (code, "The results differ: values that differ by up to 1." in out) == (1, True)
    stored.unlink()
    code, _, err = replay(file)
    assert code == 2
    assert "expected a capture with its inputs." in err

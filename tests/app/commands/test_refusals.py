"""Tests that a video which fits into no plan is refused before anything is made for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from safetensors.torch import load_file

from app.cli import main
from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from app.ui.planner import Planner
from diffusers_helper.errors import InputError
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import GenerationRequest
from tests.support.checkpoints import write_quantised_gguf
from tests.support.jobs import write_picture

REFUSAL = "Stage sample does not fit into 0.01 GB: "


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: EngineProcess) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(EngineProcess, "start", start)
    monkeypatch.setattr(EngineProcess, "_start", start)


def check_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(REFUSAL)
    assert err.count("\n") == 1
    assert "ERROR" not in err
    assert " Set --vram-cap-gb to " in err
    assert "--vae-tile" not in err  # it was not given


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_cap_in_which_nothing_fits_is_refused_in_one_line(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, outputs = write_picture(tmp_path / "picture.png"), tmp_path / "outputs"
    command = ["generate", "--image", str(picture), "--prompt", "the red ball moves right"]
    if by == "argument":
        command += ["--vram-cap-gb", "0.01"]
    else:
        monkeypatch.setenv("LONGTAKE_VRAM_CAP_GB", "0.01")
    assert main([*command, "--out", str(outputs)]) == 2
    check_refusal(capsys)
    assert not outputs.exists()


def test_a_job_that_fits_no_more_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = JobService(tmp_path)
    job = service.submit(GenerationRequest(image=str(write_picture(tmp_path / "picture.png"))))
    assert service.cancel(job.id)
    monkeypatch.setenv("LONGTAKE_VRAM_CAP_GB", "0.01")
    assert main(["generate", "--resume", job.id, "--out", str(tmp_path)]) == 2
    check_refusal(capsys)
    assert service.job(job.id).state == "cancelled"


def test_blocks_of_gguf_are_not_cast_to_another_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ADDED_MODELS, "file", None)
    demo = Path(find_model("demo").parts["transformer"].location)
    weights = load_file(demo / "diffusion_pytorch_model.safetensors")
    file = write_quantised_gguf(tmp_path / "demo.gguf", weights, GGMLQuantizationType.Q8_0)
    assert main(["models", "add", "mine", "--base", "demo", "--transformer", str(file)]) == 0
    capsys.readouterr()
    picture, outputs = str(write_picture(tmp_path / "picture.png")), tmp_path / "outputs"
    command = ["generate", "--image", picture, "--prompt", "", "--model", "mine", "--weight-dtype", "int8"]
    assert main([*command, "--out", str(outputs)]) == 2
    assert "expected default, as the transformer is stored in GGUF" in capsys.readouterr().err
    assert not outputs.exists()
    with pytest.raises(InputError, match="weight_dtype"):
        Planner().check(
            GenerationRequest(image=picture, model="mine", weight_dtype="int8"), find_model("mine")
        )

"""Tests that a video which fits into no plan is refused before anything is made for it."""

import json
import re
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from app.commands.arguments import command_words
from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from app.ui.planner import Planner
from diffusers_helper.errors import InputError
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.request import GenerationRequest
from tests.app.conftest import Longtake
from tests.support.checkpoints import write_quantised_gguf
from tests.support.jobs import write_picture

# The stage depends on the type in which the processor computes.
REFUSAL = re.compile(r"Stage (sample|vae_encode) does not fit into 0\.01 GB: ")


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: EngineProcess) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(EngineProcess, "start", start)
    monkeypatch.setattr(EngineProcess, "_start", start)


def test_a_cap_of_the_environment_in_which_nothing_fits_is_refused_in_one_line(
    tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, service = str(write_picture(tmp_path / "picture.png")), JobService(tmp_path)
    job = service.queue.add(GenerationRequest(image=picture))
    assert service.queue.cancel(job.id)
    monkeypatch.setenv("LONGTAKE_VRAM_CAP_GB", "0.01")
    made = sorted(tmp_path.iterdir())
    for arguments in ("--image", picture, "--prompt", "a ball"), ("--resume", job.id):
        reported = longtake("generate", *arguments, "--out", tmp_path, code=2)
        assert REFUSAL.match(reported)
        assert reported.count("\n") == 1
        assert "ERROR" not in reported
        assert " Set --vram-cap-gb to " in reported
        assert "--vae-tile" not in reported  # it was not given
    assert service.job(job.id).state == "cancelled"
    assert sorted(tmp_path.iterdir()) == made


CAP = {"vram_cap_gb": 0.01}


def test_every_surface_refuses_the_same_in_the_same_words(tmp_path: Path, longtake: Longtake) -> None:
    picture = str(write_picture(tmp_path / "picture.png"))
    outputs, recipe, batch = tmp_path / "outputs", tmp_path / "request.json", tmp_path / "batch.jsonl"
    job = JobService(outputs).queue.add(GenerationRequest(image=picture))
    jobs = len(list(outputs.iterdir()))
    settings = {"image": picture, "prompt": ""}
    recipe.write_text(GenerationRequest(**settings).to_json(), encoding="utf-8")
    (tmp_path / "input.png").write_bytes(Path(picture).read_bytes())
    batch.write_text(json.dumps(settings) + "\n" + json.dumps(settings | CAP) + "\n", encoding="utf-8")
    given, cap = ["--image", picture, "--prompt", ""], ["--vram-cap-gb", "0.01"]
    sentence = longtake("plan", "--image", picture, *cap, code=2)
    assert REFUSAL.match(sentence)
    for command in (
        ["generate", *given, *cap], ["generate", *given, *cap, "--dry-run"],
        ["generate", "--recipe", str(recipe), *cap], ["generate", "--recipe", str(recipe), *cap, "--dry-run"],
        ["generate", "--branch", job.id, "--keep", "0", *cap], ["jobs", "add", *given, *cap],
        ["jobs", "branch", job.id, "--keep", "0", *cap], ["jobs", "change", job.id, *cap],
    ):  # fmt: skip
        where = ["--out", str(outputs)]
        assert longtake(*command, *where, code=2) == sentence, command
    for extra in ([], ["--dry-run"]):
        reported = longtake("generate", "--batch", batch, *extra, "--out", outputs, code=2)
        assert reported.startswith(f"batch.jsonl, line 2: {sentence}")
    assert len(list(outputs.iterdir())) == jobs
    with pytest.raises(DoesNotFit) as caught:
        Planner().check(GenerationRequest(**settings, **CAP), find_model("demo"))
    assert command_words(str(caught.value.message)) in sentence


def test_a_lora_of_another_width_is_refused_by_plan_and_page_alike(
    tmp_path: Path, longtake: Longtake
) -> None:
    picture, lora = str(write_picture(tmp_path / "picture.png")), tmp_path / "wide.safetensors"
    names = [f"transformer.single_transformer_blocks.0.attn.to_q.lora_{one}.weight" for one in "AB"]
    save_file({names[0]: torch.zeros(4, 352), names[1]: torch.zeros(352, 4)}, lora)
    sentence = longtake("plan", "--image", picture, "--lora", lora, code=2)
    assert "wide.safetensors fits this model with 0 of its 2 keys" in sentence
    command = ["generate", "--image", picture, "--prompt", "", "--lora", str(lora), "--dry-run"]
    assert longtake(*command, code=2) == sentence
    with pytest.raises(InputError, match="fits this model with 0 of its 2 keys"):
        Planner().check(GenerationRequest(image=picture, lora=str(lora)), find_model("demo"))


def test_blocks_of_gguf_are_not_cast_to_another_type(
    tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ADDED_MODELS, "file", None)
    demo = Path(find_model("demo").components["transformer"].location)
    weights = load_file(demo / "diffusion_pytorch_model.safetensors")
    file = write_quantised_gguf(tmp_path / "demo.gguf", weights, GGMLQuantizationType.Q8_0)
    longtake("models", "add", "mine", "--base", "demo", "--transformer", file)
    picture, outputs = str(write_picture(tmp_path / "picture.png")), tmp_path / "outputs"
    command = ["generate", "--image", picture, "--prompt", "", "--model", "mine", "--weight-dtype", "int8"]
    for extra in (["--out", str(outputs)], ["--dry-run"]):
        assert "expected default, as the transformer is stored in GGUF" in longtake(*command, *extra, code=2)
    assert not outputs.exists()
    with pytest.raises(InputError, match="weight_dtype"):
        Planner().check(
            GenerationRequest(image=picture, model="mine", weight_dtype="int8"), find_model("mine")
        )

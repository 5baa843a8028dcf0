"""Tests of the captures of a job's stages, and of stages that are run again from them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffusers_helper.errors import InputError
from diffusers_helper.job.memory import JobMemory
from diffusers_helper.loading.loaders import load_models
from diffusers_helper.machine.local import Local
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.capture import Missing, Recorder, read_capture
from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.pipeline import generate
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.replay import replay
from diffusers_helper.request import GenerationRequest
from diffusers_helper.vae.engine import VaeEngine
from tests.support.clips import scene
from tests.support.loras import write_lora
from tests.support.making import seconds_for, tiny_request, write_scene
from tests.support.tiny_model import tiny_transformer

STAGES = {"text", "text_2", "vision", "vae_encode", "sample", "decode"}
DEBUG = Local({"LONGTAKE_DEBUG": "1"})


def make(model: Path, folder: Path, local: Local, **settings: Any) -> Path:
    pictures = {"end_image": str(write_scene(folder / "end.png", 100, 70)), "end_crop": 0.25}
    scene = write_scene(folder / "scene.png", 90, 100)
    return make_job(model, folder, local, tiny_request(scene, seconds=seconds_for(2), **pictures, **settings))


def make_job(model: Path, folder: Path, local: Local, request: GenerationRequest) -> Path:
    models = load_models(find_model(str(model), allow_folder=True))
    generate(replace(request, model=str(model)), models, folder=folder / "job", local=local)
    return JobFolder(folder / "job").captures


@pytest.fixture(scope="module")
def cached(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Local:
    local = replace(DEBUG, folder=tmp_path_factory.mktemp("cache"))
    ordinary = replace(local, environ={})
    make(tiny_model, tmp_path_factory.mktemp("earlier"), ordinary, negative="blue", cfg=2.0)
    assert list(local.encodings.iterdir())
    return local


@pytest.fixture(scope="module")
def captures(tiny_model: Path, cached: Local, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tiny_model, tmp_path_factory.mktemp("debug"), cached, negative="blue", cfg=2.0)


def first(captures: Path, stage: str) -> Path:
    return min((captures / stage).glob("*.json"))


@pytest.mark.slow
def test_without_the_variable_nothing_is_captured(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorder, "write", lambda *_: pytest.fail("a capture was written"))
    request = tiny_request(write_scene(tmp_path / "scene.png"), steps=1, one_frame=9)
    assert not make_job(tiny_model, tmp_path, Local({"LONGTAKE_DEBUG": "0"}), request).exists()


@pytest.mark.slow
def test_each_stage_is_captured_with_inputs_and_outputs(captures: Path) -> None:
    assert {path.name for path in captures.iterdir()} == STAGES
    assert {path.name: len(list(path.glob("*.json"))) for path in captures.iterdir()} == {
        "text": 1, "text_2": 1, "vision": 2, "vae_encode": 2, "sample": 2, "decode": 2,
    }  # fmt: skip
    sample = read_capture(first(captures, "sample"))
    assert sample.inputs["section"] == 1
    assert sample.inputs["condition"]["negative"]["prompt_embeds"].dim() == 3
    assert set(sample.inputs["context"]) == {"indices", "start", "history_1x", "history_2x", "history_4x"}
    stored = load_file(JobFolder(captures.parent).sections / "0001.safetensors")
    assert torch.equal(sample.outputs, stored["latents"])
    assert sample.seconds > 0
    assert set(sample.memory) == {"free_before", "free_after"}
    decode = read_capture(first(captures, "decode"))
    assert decode.outputs.shape == (4 * decode.inputs["latents"].shape[2] - 3, 64, 64, 3)
    assert decode.inputs["request"]["vae_tile"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("stage", sorted(STAGES))
def test_a_stage_that_is_run_again_has_the_same_bits(captures: Path, cached: Local, stage: str) -> None:
    last = max((captures / stage).glob("*.json"))
    found = replay(last, cached)
    assert found.difference == ""
    assert str(found).startswith(f"{stage}: ")
    assert str(found).endswith("The results are the same, bit for bit.")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["text", "vision", "vae_encode"])
def test_an_encoding_is_computed_again_and_not_read(
    captures: Path, cached: Local, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, name in ((JobMemory, "run"), (VaeEngine, "encode")):
        monkeypatch.setattr(kind, name, lambda *_, **__: pytest.fail("it was computed"))
    with pytest.raises(pytest.fail.Exception, match="it was computed"):
        replay(first(captures, stage), cached)


def assert_replayed(captures: Path, local: Local) -> None:
    """Replay the stages that depend on the settings of these tests."""
    for stage in ("vae_encode", "sample", "decode"):
        for file in sorted(captures.glob(f"{stage}/*.json")):
            assert replay(file, local).difference == "", file


@pytest.mark.slow
def test_stages_with_a_lora_and_drafts_are_run_again(tiny_model: Path, tmp_path: Path) -> None:
    local = replace(DEBUG, folder=tmp_path / "cache")
    write_lora(tmp_path / "film.safetensors", tiny_transformer())
    request = tiny_request(
        write_scene(tmp_path / "scene.png", 64, 64), seconds=seconds_for(3), steps=1,
        prompt="a red ball [0s: moves right] [2.4s: moves up]", lora=f"{tmp_path}/film.safetensors:0.7",
    )  # fmt: skip
    captures = make_job(tiny_model, tmp_path, local, request)
    assert len(list(captures.glob("sample/*.json"))) == 4  # of which one is a draft
    assert_replayed(captures, local)


@pytest.mark.slow
def test_stages_of_a_video_with_pictures_at_times_are_run_again(tiny_model: Path, tmp_path: Path) -> None:
    local = replace(DEBUG, folder=tmp_path / "cache")
    files = [write_scene(tmp_path / f"{number}.png", 80, 70 + number) for number in range(3)]
    pictures = f"1.2s: {files[1]}\n2.4s@0.25: {files[2]}"
    request = tiny_request(files[0], seconds=seconds_for(2), steps=1, mode="forward", pictures=pictures)
    captures = make_job(tiny_model, tmp_path, local, request)
    assert len(list(captures.glob("vae_encode/*.json"))) == 3
    for file in files:
        file.unlink()
    assert_replayed(captures, local)


@pytest.mark.slow
@pytest.mark.parametrize("extend", ["after", "before"])
def test_stages_of_a_video_that_continues_another_are_run_again(
    tiny_model: Path, tmp_path: Path, extend: str
) -> None:
    local = replace(DEBUG, folder=tmp_path / "cache")
    video = GrowingVideo(tmp_path, width=64, height=64, mode="forward", crf=16)
    clip = video.add_section(scene(30, 64, 64))
    picture = "" if extend == "after" else str(write_scene(tmp_path / "scene.png", 64, 64))
    request = replace(tiny_request(clip, steps=1), image=picture, video=str(clip), extend=extend)
    captures = make_job(tiny_model, tmp_path, local, request)
    assert_replayed(captures, local)


@pytest.mark.slow
def test_another_result_is_told(captures: Path, tmp_path: Path) -> None:
    file = first(captures, "vision")
    changed = tmp_path / file.name
    changed.write_text(file.read_text())
    tensors = load_file(file.with_suffix(".safetensors"))
    tensors["outputs"][0, 0, 0] += 1
    save_file(tensors, changed.with_suffix(".safetensors"))
    assert replay(changed).difference == "values that differ by up to 1"


@pytest.mark.slow
@pytest.mark.parametrize("local", [DEBUG, Local()], ids=["all stages", "failures"])
def test_a_stage_that_fails_is_captured_with_its_error(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: Local
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("the latents are damaged")

    with monkeypatch.context() as patch:
        patch.setattr("diffusers_helper.pipeline.decode_latents", fail)
        with pytest.raises(ValueError, match="damaged"):
            make(tiny_model, tmp_path, local)
        if local != DEBUG:
            assert [path.name for path in (tmp_path / "job" / "captures").iterdir()] == ["decode"]
        file = first(tmp_path / "job" / "captures", "decode")
        assert read_capture(file).outputs == {"error": "ValueError: the latents are damaged"}
        assert replay(file).difference == ""
    assert "instead of" in replay(file).difference


def test_what_cannot_be_run_again_is_refused(captures: Path, tmp_path: Path) -> None:
    node = Recorder(tmp_path).write("ROCMOptimizedKSampler", {}, None, 0.1, {})
    with pytest.raises(InputError, match="is a capture of ROCMOptimizedKSampler; expected one of the stages"):
        replay(node)
    facts = json.loads(first(captures, "text").read_text())
    facts["has_tensors"] = False
    empty = tmp_path / "1.json"
    empty.write_text(json.dumps(facts))
    assert read_capture(empty).inputs["picture"] == Missing("Tensor")
    with pytest.raises(InputError, match="holds no tensors"):
        replay(empty)


def test_captures_that_cannot_be_written_do_not_end_a_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    recorder = Recorder(tmp_path / "file")
    assert recorder.call("sample", lambda: 1, inputs=dict, free_bytes=lambda: 0) == 1
    assert "no capture of sample was written" in caplog.text

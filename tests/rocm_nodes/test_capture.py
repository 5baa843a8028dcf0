"""Tests of captures: what they hold, their bounds, their replay, and that they cost nothing if off."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from diffusers_helper.errors import InputError
from diffusers_helper.output.capture import Missing, Recorder, difference, read_capture
from rocm_nodes.__main__ import main
from rocm_nodes.registry import node_tables
from rocm_nodes.samplers import ROCMOptimizedKSampler
from tests.support.comfy_double import Comfy, ModelPatcher
from tests.support.node_runs import noise


def sample(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run a sampler with captures switched on, and return the JSON file."""
    monkeypatch.setenv("ROCM_NINODES_DEBUG", "1")
    monkeypatch.setenv("ROCM_NINODES_DEBUG_DIR", str(folder))
    kind = node_tables()[0]["ROCMOptimizedKSampler"]
    inputs: dict[str, Any] = {
        "model": ModelPatcher(), "seed": 7, "steps": 2, "cfg": 1.0, "sampler_name": "euler", "denoise": 1.0,
        "scheduler": "simple", "positive": [[noise(1, 4), {"pooled_output": noise(2)}]], "negative": [],
        "latent_image": {"samples": torch.zeros(1, 16, 4, 4)},
    }  # fmt: skip
    with torch.inference_mode():
        kind().sample(**inputs)
    (file,) = (folder / "ROCMOptimizedKSampler").glob("*.json")
    return file


def test_off_the_classes_are_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "0"):
        monkeypatch.setenv("ROCM_NINODES_DEBUG", value)
        assert node_tables()[0]["ROCMOptimizedKSampler"] is ROCMOptimizedKSampler


def test_a_capture_holds_inputs_outputs_time_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sample(tmp_path / "captures", monkeypatch)
    capture = read_capture(file)
    assert capture.name == "ROCMOptimizedKSampler"
    assert capture.inputs["model"] == Missing("ModelPatcher")
    assert torch.equal(capture.inputs["positive"][0][0], noise(1, 4))
    assert capture.outputs[0]["samples"].shape == (1, 16, 4, 4)
    assert capture.seconds > 0
    assert capture.memory["free_before"] == 8 * 1024**3
    text = json.loads(file.read_text())
    assert text["inputs"]["latent_image"]["samples"]["shape"] == [1, 16, 4, 4]


def test_a_capture_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comfy: Comfy, capsys: pytest.CaptureFixture[str]
) -> None:
    file = sample(tmp_path / "captures", monkeypatch)
    monkeypatch.delenv("ROCM_NINODES_DEBUG")
    assert main(["replay", str(file)]) == 2
    reported = capsys.readouterr().err
    assert "The capture does not hold the model (ModelPatcher). Name its file with --model" in reported
    weights = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(1)}, weights)
    assert main(["replay", str(file), "--model", str(weights)]) == 0
    assert "The results are the same, bit for bit." in capsys.readouterr().out
    comfy.loads = lambda path: ModelPatcher(factor=0.25)
    assert main(["replay", str(file), "--model", str(weights)]) == 1
    assert "The results differ: [0]: samples: values that differ by up to" in capsys.readouterr().out


def test_a_failure_is_captured_and_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comfy: Comfy, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCM_NINODES_DEBUG", "1")
    monkeypatch.setenv("ROCM_NINODES_DEBUG_DIR", str(tmp_path / "captures"))
    kind = node_tables()[0]["ROCMOptimizedCheckpointLoader"]
    with pytest.raises(FileNotFoundError):
        kind().load_checkpoint(ckpt_name="absent.safetensors")
    (file,) = (tmp_path / "captures" / "ROCMOptimizedCheckpointLoader").glob("*.json")
    assert read_capture(file).outputs == {"error": "FileNotFoundError: absent.safetensors"}
    monkeypatch.delenv("ROCM_NINODES_DEBUG")
    assert main(["replay", str(file)]) == 0
    assert "The results are the same" in capsys.readouterr().out


def test_a_replay_that_cannot_begin_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = sample(tmp_path / "captures", monkeypatch)
    assert main(["replay", str(file), "--model", str(tmp_path / "absent.safetensors")]) == 2
    assert (
        "absent.safetensors is not a file. Name the file of the model with --model."
        in capsys.readouterr().err
    )
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.argv", ["replay"])
    for has_card, flags, more in ((False, ["-x"], ["--cpu"]), (False, ["--cpu"], []), (True, ["-x"], [])):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_card=has_card: has_card)
        assert main(["replay", str(file), "--comfyui", str(tmp_path), "--", *flags]) == 2
        assert sys.argv == [str(tmp_path / "main.py"), *flags, *more]
        assert sys.path[0] == str(tmp_path)
        words = "ComfyUI cannot be imported (No module named 'comfy.options'). Name its folder"
        assert words in capsys.readouterr().err


def test_captures_keep_within_their_bytes(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, most_bytes=10_000)
    files = [recorder.write("node", {"x": noise(500)}, None, 0.1, {}) for _ in range(8)]
    left = sorted(tmp_path.glob("*/*.json"))
    assert files[-1] in left
    assert files[0] not in left
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 10_000
    too_large = read_capture(recorder.write("node", {"x": noise(5000)}, None, 0.1, {}))
    assert too_large.inputs["x"] == Missing("Tensor")


def test_a_capture_that_fails_does_not_hide_the_error_of_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lost() -> int:
        if calls:
            raise RuntimeError("HIP error: unspecified launch failure")
        calls.append(1)
        return 0

    def fail() -> None:
        raise ValueError("the latents are damaged")

    calls = list[int]()
    recorder = Recorder(tmp_path, only_failures=True)
    with pytest.raises(ValueError, match="damaged"):
        recorder.call("decode", fail, inputs=dict, free_bytes=lost)
    assert "no capture of decode was written: HIP error" in caplog.text
    assert recorder.call("decode", lambda: 1, inputs=lambda: pytest.fail("read"), free_bytes=lambda: 0) == 1
    assert not list(tmp_path.iterdir())


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for text in ("{}", "[]", "x", '{"format": 1}'):
        file.write_text(text)
        with pytest.raises(InputError, match="expected the JSON file of a capture in format 3"):
            read_capture(file)


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (torch.zeros(2), torch.zeros(3), "(2,) of torch.float32 instead of (3,) of torch.float32"),
        ([1, torch.ones(1)], [1, torch.zeros(1)], "[1]: values that differ by up to 1"),
        (torch.tensor([torch.nan, 1.0]), torch.tensor([torch.nan, 1.0]), ""),
        (torch.tensor(1), torch.tensor(1), ""),
        ({"a": 1}, {"b": 1}, "the names ['a'] instead of ['b']"),
        ([1], [1, 2], "the names ['[0]'] instead of ['[0]', '[1]']"),
        ("a", "b", "'a' instead of 'b'"), (object(), Missing("object"), ""), ({"a": [1]}, {"a": [1]}, ""),
    ],
)  # fmt: skip
def test_differences_are_named(found: Any, expected: Any, words: str) -> None:
    assert difference(found, expected) == words

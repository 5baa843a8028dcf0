"""Tests that the command line shows hostile names and texts, and refuses arguments that are not text."""

import json
import re
import struct
import sys
from pathlib import Path

import pytest

from app.jobs.service import JobService
from app.web import server
from diffusers_helper.request import GenerationRequest
from tests.app.jobs.test_stdio import CONTROLS
from tests.support.jobs import write_picture
from tests.support.program import answer

ESC = "\x1b]0;owned\x07\x9b31m\u202e"


def write_hostile_weights(file: Path) -> Path:
    header = {
        "__metadata__": {"modelspec.title": f"{ESC}\ntitle"},
        f"lora_{ESC}\nforged": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "b": {"dtype": f"{ESC}F\n32", "shape": [1], "data_offsets": [4, 8]},
    }
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    return file


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    picture = write_picture(tmp_path / "picture.png")
    folder = tmp_path / "videos"
    JobService(folder).queue.add(GenerationRequest(image=str(picture), prompt=f"{ESC}one\ntwo"))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "list", "--outputs", "{outputs}"), ("jobs", "show", "{job}", "--outputs", "{outputs}"),
        ("jobs", "show", f"no{ESC}\nx", "--outputs", "{outputs}"), ("jobs", "list", "--state", f"{ESC}\nx"),
        ("jobs", "list", "--outputs", f"{ESC}\nx"), ("inspect", "{weights}"), ("inspect", f"{ESC}\nx"),
        ("inspect", "{named}"), ("models", "list", f"{ESC}\nx"), ("models", "verify", f"{ESC}\nx"),
        ("models", "add", f"{ESC}\nx", "--transformer", "{weights}"), ("models", "remove", f"{ESC}\nx"),
        ("models", "convert", "{named}", "--weight-dtype", "fp8_e4m3fn"), ("plan", "--model", f"{ESC}\nx"),
        ("plan", "--card", f"{ESC}\nx"), ("plan", "--lora", f"{ESC}x"), ("plan", "--sampler", f"{ESC}\nx"),
        ("plan", "--image", "{named}"), ("generate", f"--{ESC}\nx"), (f"{ESC}\nx",), ("replay", "{named}"),
        ("generate", "--recipe", "{named}"), ("generate", "--preset", f"{ESC}\nx"),
        ("generate", "--batch", "{batch}"), ("comfyui", f"{ESC}\nx"), ("tune", "--aspect", f"{ESC}\nx"),
    ],
)  # fmt: skip
def test_no_control_reaches_the_terminal(
    arguments: tuple[str, ...], outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (job,) = JobService(outputs).jobs()
    batch = tmp_path / f"{ESC}\nx.jsonl"
    batch.write_text(json.dumps({"prompt": f"{ESC}\nx", "image": f"{ESC}\nx"}) + f"\n{ESC}\n")
    places = {
        "outputs": outputs, "job": job.id, "weights": write_hostile_weights(tmp_path / "w.safetensors"),
        "named": write_hostile_weights(tmp_path / f"{ESC}\nx.safetensors"), "batch": batch,
    }  # fmt: skip
    given = [places[one[1:-1]] if one[1:-1] in places and one[0] == "{" else one for one in arguments]
    code, out, err = answer(capsys, *map(str, given))
    assert code in (0, 1, 2)
    assert out + err
    assert not CONTROLS.search(out + err)
    assert not any(line.startswith(("x", "two", "forged")) for line in (out + err).splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--prompt", "caf\udce9"), ("jobs", "show", "\udcff"), ("inspect", "\udcff.gguf"),
        ("models", "list", "\udcff"), ("plan", "--\udcff"), ("\udcff",), ("generate", "--outputs", "\udcff"),
        ("plan", "--lora", "x", "--lora", "\udcff"), ("plan", "--steps", "\udcff"),
        ("jobs", "cancel", "\udcff"),
    ],
)  # fmt: skip
def test_an_argument_that_is_not_text_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = answer(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(r"\w+ is '.*'; expected text in UTF-8. Write it|--help$|invalid choice", err)
    assert r"\udc" in err


def test_the_server_refuses_it_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo_gradio.py", "--outputs", "\udcff"])
    assert server.main() == 2
    assert "expected text in UTF-8" in capsys.readouterr().err


def test_a_line_of_a_batch_that_is_not_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = tmp_path / "batch.jsonl"
    names = ("prompt", "image", "lora", "model", "mode", "sampler", "\ud800", "seed")
    lines = [{"image": "x.png", name: value} for name in names for value in ("\ud800", "a\0b")]
    batch.write_text("\n".join(map(json.dumps, lines)))
    code, _, err = answer(capsys, "generate", "--batch", str(batch))
    assert code == 2
    assert err.count("batch.jsonl, line ") == len(lines)
    assert "Traceback" not in err

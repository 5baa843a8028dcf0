"""Tests that every program refuses an environment variable's wrong value at its start, in words."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.app.conftest import Longtake
from tests.support.jobs import ROOT, STAND_IN, write_picture
from tests.support.staged_engine import StagedEngine

RUNGS = "auto, kitchen, miopen, channels, taps, native, tiles, cpu, off"
WRONG = {
    "LONGTAKE_CONV_RUNG": ("bogus", f"one of {RUNGS}"),
    "LONGTAKE_DEBUG": ("yes", "one of 0, 1"),
    "LONGTAKE_ENCODINGS": ("no", "one of 0, 1"),
    "MIOPEN_FIND_MODE": ("QUICK", "one of NORMAL, FAST, HYBRID, DYNAMIC_HYBRID"),
    "MIOPEN_FIND_ENFORCE": ("always", "one of NONE, DB_UPDATE, SEARCH, SEARCH_DB_UPDATE, DB_CLEAN"),
    "LONGTAKE_VRAM_CAP_GB": ("much", "a number from 0.001 to 1024"),
    "LONGTAKE_PRESERVED_GB": ("-1", "a number from 0 to 128"),
    "LONGTAKE_VAE_TILE": ("7", "a whole number from 64 to 1024, a multiple of 32"),
    "LONGTAKE_VAE_DTYPE": ("fp8", "stored or fp32 or bf16 or fp16"),
    "LONGTAKE_ATTENTION": ("fused", "auto or native or sliced or flash or efficient or math or triton"),
    "LONGTAKE_ATTENTION_DEVIATION": ("much", "percent, above 0 and at most 10"),
    "LONGTAKE_FP32": ("yes", "one of 0, 1"),
    "LONGTAKE_PROFILE": ("gfx9", "one of gfx1100"),
}
COMMANDS = {
    "generate": ("generate", "--prompt", "x", "--image"),
    "plan": ("plan",),
    "tune": ("tune",),
    "doctor": ("doctor",),
    "page": ("page", "--port", "0"),
}


@pytest.fixture(params=WRONG)
def refusal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    value, expected = WRONG[request.param]
    monkeypatch.setenv(request.param, value)
    return f"{request.param} is {value!r}; expected {expected}"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_refuses_it(command: str, refusal: str, tmp_path: Path, longtake: Longtake) -> None:
    arguments: Sequence[str] = COMMANDS[command]
    if command == "generate":
        arguments = (*arguments, str(write_picture(tmp_path / "picture.png")))
    if command in ("generate", "page"):
        arguments = (*arguments, "--outputs", str(tmp_path / "outputs"))
    (line,) = longtake(*arguments, code=2).splitlines()
    assert line.startswith(refusal)
    assert line.endswith("Correct it, or leave it out.")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("name", ["LONGTAKE_KEEP_DAYS", "LONGTAKE_KEEP_GB"])
def test_the_queue_refuses_a_wrong_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "long")
    with pytest.raises(InputError, match=f"{name} is 'long'; expected a number above 0. Correct or unset"):
        JobService(tmp_path, StagedEngine())


@pytest.mark.slow
def test_an_engine_reports_it_in_its_jobs(tmp_path: Path) -> None:
    request = GenerationRequest(image="photo.png").to_json()
    order = {"do": "run", "job": "a", "folder": str(tmp_path), "request": request, "blocklist": []}
    path = f"{ROOT}{os.pathsep}{STAND_IN}"  # without torch
    environ = {**os.environ, "PYTHONPATH": path, "LONGTAKE_CONV_RUNG": "bogus"}
    command = (sys.executable, "-m", "app.engine", "WARNING")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as engine:
        engine.stdin.write(json.dumps(order).encode() + b"\n")
        engine.stdin.flush()
        event = json.loads(engine.stdout.readline())
        engine.stdin.close()
    assert (event["event"], event["code"]) == ("failed", "bad_input")
    assert event["message"] == f"LONGTAKE_CONV_RUNG is 'bogus'; expected one of {RUNGS}."

"""Tests of times in prompts and of pictures: what is understood, and what is told before a video starts."""

import json
from pathlib import Path

import pytest

from app.cli import main
from tests.support.jobs import write_picture


def unread(excerpt: str) -> str:
    return f"{excerpt!r} is no time that is understood and counts as words. Write it as [2.4s: ...]."


PROMPT = "a [2s x] [9s: b]"
TOLD = [unread("[2s x]"), "9 s is after the end of the video."]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_picture(tmp_path / "boat.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_tells_it_before_the_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--image", "boat.png", "--prompt", PROMPT, "--seconds", "4.8"]
    assert main(["generate", *arguments, "--dry-run"]) == 0
    assert capsys.readouterr().err.splitlines() == TOLD
    assert main(["jobs", "add", *arguments]) == 0
    assert capsys.readouterr().err.splitlines() == TOLD
    assert main(["plan", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"][-2:] == TOLD
    (folder / "a.csv").write_text(f"image,prompt\nboat.png,a\nboat.png,{PROMPT}\n")
    assert main(["generate", "--batch", "a.csv", "--dry-run"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"a.csv, line 3: {sentence}" for sentence in TOLD]

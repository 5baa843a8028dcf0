"""Tests of the words that stand for folders in sentences."""

from pathlib import Path

import pytest

from app.redact import plain_paths
from diffusers_helper.request import SETTINGS


def test_sentences_name_folders_as_people_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "disk"))
    outputs = tmp_path / "videos"
    text = f"In {tmp_path}/home/.cache, {tmp_path}/disk/hub, {outputs}/a.mp4 and /mnt/far/b.mp4 <b>."
    assert plain_paths(text, outputs) == "In ~/.cache, $HF_HOME/hub, outputs/a.mp4 and b.mp4 <b>."


def test_no_sentence_about_a_setting_explains_the_unit() -> None:
    assert not [name for name, setting in SETTINGS.items() if "1024^3" in setting.help]

"""Tests of the words that stand for folders in sentences."""

from pathlib import Path

import pytest

from app import redact
from app.redact import plain_paths
from diffusers_helper.request import SETTINGS


def test_sentences_name_folders_as_people_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "disk"))
    outputs = tmp_path / "videos"
    text = f"In {tmp_path}/home/.cache, {tmp_path}/disk/hub, {outputs}/a.mp4 and /mnt/far/b.mp4 <b>."
    assert plain_paths(text, outputs) == "In ~/.cache, $HF_HOME/hub, outputs/a.mp4 and b.mp4 <b>."


def test_folders_get_names_innermost_first_and_through_links_and_short_names_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redact, "_FOLDER_NAMES", dict[Path, str]())
    (tmp_path / "real" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    text = f"{tmp_path}/real/in/a {tmp_path}/real/b {tmp_path}/link/c {tmp_path}/really/d"
    assert redact.without_paths(text).count("<tmp>") == 4
    redact.name_folder(tmp_path / "link", "models")
    redact.name_folder(tmp_path / "real" / "in", "inner")
    *known, last = redact.without_paths(text).split()
    assert known == ["<inner>/a", "<models>/b", "<models>/c"]
    assert (last[:6], last[-9:]) == ("<tmp>/", "/really/d")
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setattr("socket.gethostname", lambda: "al")
    assert redact.without_names("Ann on al, annex, ann's") == "<user> on al, annex, <user>'s"


def test_no_sentence_about_a_setting_explains_the_unit() -> None:
    assert not [name for name, setting in SETTINGS.items() if "1024^3" in setting.help]

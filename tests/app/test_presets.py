"""Tests of presets: plain files that come back as they were, and nothing outside their folder."""

import json
from pathlib import Path

import pytest

from app.presets import (
    START,
    load_preset,
    preset_names,
    remove_preset,
    save_preset,
    start_settings,
)
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest


def test_a_preset_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "presets"
    assert preset_names(folder) == ()
    assert start_settings(folder).settings == {}
    settings = {"prompt": "Ein Boot 红色的船", "steps": 9, "vae_tile": None, "cfg": 2}
    pictures = {"image": "/srv/ada/boat.png", "pictures": "2.4s: /srv/ada/sea.png"}
    file = save_preset(folder, "nächtlich 夜", settings | pictures)
    assert json.loads(file.read_text(encoding="utf-8")) == settings
    assert load_preset(folder, "nächtlich 夜").settings == settings
    save_preset(folder, START, {"steps": 4})
    assert start_settings(folder).settings == {"steps": 4}
    assert preset_names(folder) == ("nächtlich 夜", START)
    longest = save_preset(folder, 50 * "x", {"steps": 4})
    longest.unlink()
    (folder / "._nächtlich 夜.json").write_bytes(b"\0\5\26\7")  # the twin that a Mac writes
    remove_preset(folder, START)
    assert preset_names(folder) == ("nächtlich 夜",)


def test_a_preset_of_another_version_is_used_as_far_as_possible(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text('{"steps": 7, "style": "boats", "crf": 99}')
    found = load_preset(tmp_path, "new")
    assert found.settings == {"steps": 7}
    assert [word in "".join(found.notices) for word in ("'style'", "`crf` is 99")] == [True, True]
    request = GenerationRequest(image="/srv/ada/boat.png", steps=3, seed=2)
    save_preset(tmp_path, "mine", json.loads(request.to_json()))
    assert load_preset(tmp_path, "mine").settings["seed"] == 2
    assert "ada" not in (tmp_path / "mine.json").read_text()


@pytest.mark.parametrize(
    "name", ["", " a", ".a", "../a", "a/b", "a\\b", "a\0", "a\nb", "x" * 51, "\udcff", "a:b"]
)
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    for act in (
        lambda: save_preset(tmp_path, name, {"steps": 1}),
        lambda: load_preset(tmp_path, name),
        lambda: remove_preset(tmp_path, name),
    ):
        with pytest.raises(InputError, match="preset's name"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_saved_or_found_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'style' is not a setting"):
        save_preset(tmp_path, "a", {"style": 1})
    with pytest.raises(InputError, match="steps is 0"):
        save_preset(tmp_path, "a", {"steps": 0})
    with pytest.raises(InputError, match="no setting"):
        save_preset(tmp_path, "a", {"image": "x"})
    with pytest.raises(InputError, match="expected one of: none"):
        load_preset(tmp_path, "a")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        save_preset(tmp_path / "file", "a", {"steps": 1})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match=r"bad\.json holds no settings of Longtake"):
        load_preset(tmp_path, "bad")

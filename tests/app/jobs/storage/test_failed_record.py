"""Tests that a job that fails early still leaves its record of memory for the page to show."""

from pathlib import Path
from typing import Any

import pytest

from app.ui.live.words import memory_of
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.making import load_tiny, make, tiny_request, write_scene


def test_a_failure_in_the_first_decode_keeps_the_stages_until_then(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("diffusers_helper.vae.engine.decode_pass", broken)
    folder = JobFolder(tmp_path / "job")
    with pytest.raises(ZeroDivisionError):
        make(tiny_request(write_scene(tmp_path / "scene.png")), load_tiny(tiny_model), folder.path)
    shown = memory_of(folder.memory)
    assert len(shown["rows"]) == 6
    assert [name for name, _ in shown["facts"]] == ["Peak on the device"]
    assert not folder.video.exists()

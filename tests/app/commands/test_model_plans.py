"""Tests of `models plan`, and of the names that the errors of `models` give to its arguments."""

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from diffusers_helper.models.added import ADDED_MODELS
from tests.app.conftest import Longtake


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ADDED_MODELS, "file", None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_memory_and_disk_for_each_card_and_format(longtake: Longtake, snapshot: SnapshotAssertion) -> None:
    plan = ("models", "plan", "framepack-i2v")
    automatic = longtake(*plan, "--weight-dtype", "auto").splitlines()
    stored = longtake(*plan).splitlines()[:3]
    small = longtake(*plan, "--weight-dtype", "fp8_e4m3fn").splitlines()[-8]
    formats = longtake(*plan, "--formats").splitlines()
    lines = [line for line in formats if line.startswith(("as stored", "fp8", "Q4_0", "Q2_K", "With"))]
    assert "\n".join([*automatic, *stored, small, *lines]) == snapshot
    rows = [json.loads(line) for line in longtake(*plan, "--formats", "--json").splitlines()]
    assert rows[0]["formats"][0] == "as stored"
    assert [card["card_gb"] for card in rows[0]["cards"]] == [8, 12, 16, 20, 24]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["plan", "nosuch"], "MODEL is 'nosuch'"),
        (["verify", "nosuch"], "MODEL is 'nosuch'"),
        (["add", "mine", "--base", "nosuch"], "--base is 'nosuch'"),
        (["plan", "demo", "--weight-dtype", "fp4"], "--weight-dtype is 'fp4'"),
    ],
)
def test_an_error_names_the_argument_as_the_verb_takes_it(
    arguments: list[str], name: str, longtake: Longtake
) -> None:
    assert longtake("models", *arguments, code=2).startswith(name)

"""Tests of `models plan`, and of the names that the errors of `models` give to its arguments."""

import json
from pathlib import Path

import pytest

from diffusers_helper.models.added import ADDED_MODELS
from tests.app.conftest import Longtake


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(ADDED_MODELS, "file", None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_the_table_shows_memory_and_disk_for_a_type_on_the_device(longtake: Longtake) -> None:
    stored = longtake("models", "plan", "framepack-i2v")
    assert stored.splitlines()[3].split()[:9] == ["8", "GB", "5", "2.5", "0.77", "23.2", "1.9", "s", "23.2"]
    assert "two channels of DDR4-3200" in stored
    assert "weights as they are stored" in stored
    assert stored.splitlines()[-8].split() == [
        "24", "GB", "20", "18", "1.7", "22.3", "1.9", "s", "22.3", "22.3", "5.9", "as", "stored",
    ]  # fmt: skip
    fp8 = longtake("models", "plan", "framepack-i2v", "--weight-dtype", "fp8_e4m3fn")
    assert "weights in fp8_e4m3fn on the device" in fp8
    assert fp8.splitlines()[-8].split()[4:] == [
        "1.9", "13.6", "1.1", "s", "21.1", "21.1", "5.8", "fp8_e4m3fn",
    ]  # fmt: skip
    automatic = longtake("models", "plan", "framepack-i2v", "--weight-dtype", "auto")
    assert "weights in the type that suits each card" in automatic
    assert automatic.splitlines()[-8].split()[-2:] == ["as", "stored"]
    assert automatic.splitlines()[-7].split()[-4:] == ["0", "0", "18.6", "int8"]


def test_the_formats_are_compared(longtake: Longtake) -> None:
    lines = longtake("models", "plan", "framepack-i2v", "--formats").splitlines()
    default, fewest = (
        next(line for line in lines[begin:] if line.startswith("Q4_0, Q4_K"))
        for begin in (0, lines.index("With as little preserved memory as the estimates allow:"))
    )
    assert " ".join(default.split()[3:7]) == "6.7 0.47 + 6.3"
    assert " ".join(default.split()[-3:]) == "1.8 + 4.9"
    assert fewest.split()[-3:] == ["6.7", "+", "0"]
    reported = [
        json.loads(line)
        for line in longtake("models", "plan", "framepack-i2v", "--formats", "--json").splitlines()
    ]
    assert reported[0]["formats"][0] == "as stored"
    assert [card["card_gb"] for card in reported[0]["cards"]] == [8, 12, 16, 20, 24]
    assert reported[0]["cards"][-1]["default"]["disk_bytes"] > 22 * 1024**3


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

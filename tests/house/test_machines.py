"""Tests of what is chosen on machines of people: torch's build, device, memory, cap, the engine's view."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import app.machine
from app.cards import VideoCard, list_cards
from app.commands.doctor import examine
from app.machine import this_machine
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.sysfs import INTEGRATED, UNUSABLE, VISIBLE_VARIABLES, amd_gpus
from diffusers_helper.planning.profiles import profile_for
from diffusers_helper.planning.variables import engine_environment
from diffusers_helper.units import GB, gb_text
from tests.support.fresh_checkout import FreshCheckout
from tests.support.machines import TOPOLOGIES, write_machine

NAMES = sorted(file.stem for file in TOPOLOGIES.glob("*.json"))


@pytest.fixture(autouse=True)
def no_programs_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep out NVIDIA's and ROCm's programs of the machine that runs the tests."""
    monkeypatch.setattr(app.machine, "output_of", lambda *command, **options: "")
    caches = app.machine._rocminfo_gpus, app.machine._nvidia_card
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture(params=NAMES)
def facts(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    machine = write_machine(tmp_path / "machine", request.param)
    if text := machine.get("rocminfo"):
        monkeypatch.setattr(
            app.machine, "output_of", lambda command, *rest, **options: text * (command == "rocminfo")
        )
    return machine


def test_the_set_up_takes_the_build_for_the_card_that_decides(facts: dict[str, Any], tmp_path: Path) -> None:
    checkout = FreshCheckout(tmp_path / "checkout")
    if text := facts.get("rocminfo"):
        checkout.program("rocminfo", f"#!/usr/bin/env bash\ncat <<'END'\n{text}END\n")
    result = checkout.shell(
        f'machine="{tmp_path}/machine"; choose_torch; printf "%s\n" "$hardware" "$torch_builds" "$cards"'
    )
    expected = facts["expected"]
    assert result.stderr == ""
    assert result.stdout.splitlines() == [expected["hardware"], expected["builds"], expected["cards"]]


def test_plans_are_made_for_the_device_that_computes(facts: dict[str, Any], tmp_path: Path) -> None:
    machine, expected = this_machine({}, tmp_path / "machine"), facts["expected"]
    profile = profile_for(machine, {})
    kind = expected["hardware"]
    assert (machine.kind, machine.arch) == (kind, expected["arch"])
    assert gb_text(machine.total_bytes) == gb_text(round(expected["total_gb"] * GB))
    assert gb_text(profile.cap_bytes.value) == gb_text(round(expected["cap_gb"] * GB))
    if "link" in expected:
        assert machine.link.name == expected["link"]


def test_the_engine_sees_the_same_device_and_no_other(facts: dict[str, Any], tmp_path: Path) -> None:
    root, expected = tmp_path / "machine", facts["expected"]
    machine = this_machine({}, root)
    environ = engine_environment(profile_for(machine, {}).environment, {})
    assert environ.get("ROCR_VISIBLE_DEVICES", "") == expected.get("visible", "")
    inside = this_machine(environ, root)
    assert (inside.kind, inside.arch, inside.total_bytes) == (machine.kind, machine.arch, machine.total_bytes)
    # What a person has hidden or chosen stays.
    for variable in VISIBLE_VARIABLES:
        user_environ = {variable: "0"}
        settings = profile_for(this_machine(user_environ, root), user_environ).environment
        assert not set(VISIBLE_VARIABLES) & engine_environment(settings, user_environ).keys()


def test_an_engine_of_its_own_for_each_card_that_computes(facts: dict[str, Any], tmp_path: Path) -> None:
    root, expected = tmp_path / "machine", facts["expected"]
    cards = list_cards(root)
    assert len(cards) == (len(expected["cards"].split()) if facts["nodes"] else 0)
    arches = [this_machine(card.variables, root).arch for card in cards]
    assert sorted(arches) == sorted(expected["cards"].split())[: len(arches)]
    seen = VideoCard.from_environment({}, root)
    assert (seen.label == "processor") == (expected["hardware"] == "cpu")


def test_doctor_prints_one_row_for_the_machine(facts: dict[str, Any], tmp_path: Path) -> None:
    root, expected = tmp_path / "machine", facts["expected"]
    torch = {"torch": "2.13.0", "hip": "7.2", "cuda": "", "devices": 1, "kernel": ""}
    report = examine("demo", tmp_path, {}, root, lambda environ: torch, Local())
    (row,) = [finding.text for finding in report if finding.topic == "machine"]
    assert expected["arch"] in row
    if expected["total_gb"]:
        assert f"{gb_text(round(expected['total_gb'] * GB))} GB of " in row
    left_out = [finding.text for finding in report if "; left out" in finding.text]
    used = expected["cards"].split() if facts["nodes"] else []
    assert len(left_out) == len(amd_gpus(root)) - len(used)


def test_the_set_up_and_the_program_agree_on_what_a_processors_graphics_are(tmp_path: Path) -> None:
    lists = FreshCheckout(tmp_path).shell('echo "$integrated"; echo "$unusable"').stdout.splitlines()
    assert [set(names.split()) for names in lists] == [INTEGRATED, UNUSABLE]


def test_every_machine_says_where_its_values_are_from() -> None:
    assert len(NAMES) >= 14
    for name in NAMES:
        assert json.loads((TOPOLOGIES / f"{name}.json").read_text())["source"], name

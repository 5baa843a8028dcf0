"""Tests of MIOpen's find mode: the argument wins over the environment, the environment over the profile."""

import os
import signal
from pathlib import Path

import pytest

from app.cli import main
from app.commands.arguments import apply_engine_environment
from app.miopen import find_mode_findings
from diffusers_helper.errors import InputError
from diffusers_helper.planning.variables import FIND_MODE_VARIABLE, FIND_MODES, find_mode_of
from tests.app.conftest import Longtake
from tests.support.jobs import TIMEOUT
from tests.support.program import Program, until


def test_only_the_mode_normal_may_be_enforced() -> None:
    environs = [{"MIOPEN_FIND_ENFORCE": "4", **mode} for mode in ({}, {FIND_MODE_VARIABLE: "NORMAL"})]
    assert [bool(remedy) for environ in environs for _, remedy in find_mode_findings(environ)] == [False]
    (_, unsafe) = find_mode_findings({"MIOPEN_FIND_ENFORCE": " search_db_update", FIND_MODE_VARIABLE: "FAST"})
    assert unsafe == ("MIOPEN_FIND_ENFORCE=SEARCH_DB_UPDATE is not safe with find mode FAST", "Leave it out.")


@pytest.mark.parametrize(
    ("argument", "own", "expected"),
    [(None, None, "FAST"), ("normal", "HYBRID", "NORMAL")],
)
def test_the_engine_starts_with_it(
    argument: str | None, own: str | None, expected: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_PROFILE", "gfx1100")
    if own is None:
        monkeypatch.delenv(FIND_MODE_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(FIND_MODE_VARIABLE, own)
    given = [] if argument is None else ["--miopen-find-mode", argument]
    process = program.start("generate", "--json", *given, script="steps=2 at=1 fault=wait")
    engine = int(until(process, "warned", 1)["message"].split()[0].removeprefix("pid="))
    environment = Path(f"/proc/{engine}/environ").read_bytes().split(b"\0")
    assert [entry for entry in environment if entry.startswith(b"MIOPEN_FIND_MODE=")] == [
        f"{FIND_MODE_VARIABLE}={expected}".encode()
    ]
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) == 130


def test_the_server_takes_it(monkeypatch: pytest.MonkeyPatch, longtake: Longtake) -> None:
    monkeypatch.setenv(FIND_MODE_VARIABLE, "HYBRID")
    reported = longtake("page", "--miopen-find-mode", "dynamic_hybrid", "--port", 70000, code=2)
    assert os.environ[FIND_MODE_VARIABLE] == "DYNAMIC_HYBRID"
    assert "--miopen-find-mode has no effect here: MIOpen runs on AMD cards only.\n" in reported


@pytest.mark.parametrize("command", ["generate", "tune", "doctor"])
def test_other_modes_are_refused(command: str, longtake: Longtake) -> None:
    reported = longtake(command, "--miopen-find-mode", "quick", code=2)
    assert "--miopen-find-mode" in reported
    assert all(mode in reported for mode in FIND_MODES)


def test_doctor_takes_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def note(model: str, out: Path, environ: dict[str, str], **_: object) -> None:
        seen.update(environ)
        raise InputError("enough", "")

    monkeypatch.setenv(FIND_MODE_VARIABLE, "FAST")
    monkeypatch.setattr("app.commands.doctor.examine", note)
    assert main(["doctor", "--miopen-find-mode", "hybrid"]) == 2
    assert seen[FIND_MODE_VARIABLE] == "HYBRID"
    assert os.environ[FIND_MODE_VARIABLE] == "FAST"


def test_names_and_numbers() -> None:
    values = ("fast", "2", " 5 ", "6", "trust_verify", "4", "QUICK")
    expected = ["FAST", "FAST", "DYNAMIC_HYBRID", "6", "TRUST_VERIFY", "", ""]
    assert [find_mode_of(value) for value in values] == expected


def test_who_imports_torch_itself_gets_the_engines_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: value for name, value in os.environ.items() if not name.startswith(("MIOPEN", "PYTORCH"))}
    monkeypatch.setattr(
        os, "environ", {**before, "LONGTAKE_PROFILE": "gfx1100", FIND_MODE_VARIABLE: "NORMAL"}
    )
    apply_engine_environment()
    assert os.environ[FIND_MODE_VARIABLE] == "NORMAL"
    assert os.environ["PYTORCH_ALLOC_CONF"] == "garbage_collection_threshold:0.8"


def test_tune_measures_in_the_engines_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measure in the environment of the engine; otherwise the times would not apply to it."""
    order: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("app.machine.detect", lambda *_: order.append("environment") or machine())
    monkeypatch.setattr(
        "diffusers_helper.loading.loaders.load_models", lambda _: order.append("load") or stop()
    )
    monkeypatch.setenv(FIND_MODE_VARIABLE, "HYBRID")
    assert main(["tune", "--model", "demo", "--miopen-find-mode", "NORMAL"]) == 130
    assert os.environ[FIND_MODE_VARIABLE] == "NORMAL"
    assert order == ["environment", "environment", "load"]


def machine() -> object:
    from diffusers_helper.planning.profiles import Machine

    return Machine("cuda", "", "a card", 0)  # its profile sets nothing that a later test could see


def stop() -> None:
    raise KeyboardInterrupt

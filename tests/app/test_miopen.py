"""Tests of MIOpen's find mode: the argument wins over the environment, the environment over the profile."""

import os
import signal
from pathlib import Path

import pytest

from app.cli import main
from app.commands.arguments import apply_engine_environment
from app.commands.doctor import examine
from app.miopen import find_mode_findings
from diffusers_helper.errors import InputError
from diffusers_helper.planning.variables import FIND_MODE_VARIABLE, FIND_MODES, find_mode_of
from tests.app.conftest import Longtake
from tests.support.jobs import TIMEOUT
from tests.support.machines import GB, write_card, write_memory
from tests.support.program import Program, until


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


def look(root: Path, environ: dict[str, str]) -> list[tuple[str, str, str]]:
    facts = {"torch": "2.13.0", "hip": "7.2", "cuda": "", "devices": 1, "arch": "gfx1100", "kernel": "flash"}
    report = examine("demo", root, environ, root, lambda _: facts)
    return [(finding.topic, finding.level, finding.text) for finding in report]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_memory(tmp_path, 64 * GB, 50 * GB)
    write_card(tmp_path, 110000, 24 * GB)
    return tmp_path


def test_doctor_says_which_mode_is_in_force_whose_it_is_and_what_it_costs(root: Path) -> None:
    found = look(root, {})
    assert ("MIOpen", "ok", f"find mode FAST: {FIND_MODES['FAST']}") in found
    assert any(text.startswith("MIOPEN_FIND_MODE=FAST (Longtake's") for _, _, text in found)
    found = look(root, {FIND_MODE_VARIABLE: "1"})
    assert ("MIOpen", "ok", f"find mode NORMAL: {FIND_MODES['NORMAL']}") in found
    assert any(text.startswith("MIOPEN_FIND_MODE=1 (yours; replaces FAST") for _, _, text in found)


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


def test_doctor_says_where_it_does_nothing(tmp_path: Path) -> None:
    write_memory(tmp_path, 64 * GB, 50 * GB)
    assert not any("find mode" in text for _, _, text in look(tmp_path, {}))
    assert any(
        "find mode has no effect here" in text for _, _, text in look(tmp_path, {FIND_MODE_VARIABLE: "FAST"})
    )


@pytest.mark.parametrize(
    ("mode", "enforced", "safe"),
    [("FAST", "3", True), ("FAST", "4", False), ("5", "DB_UPDATE", False), ("NORMAL", "4", True)],
)
def test_enforcing_that_the_mode_makes_unsafe_is_named(mode: str, enforced: str, safe: bool) -> None:
    reported = find_mode_findings({FIND_MODE_VARIABLE: mode, "MIOPEN_FIND_ENFORCE": enforced})
    assert any("not safe" in text for text, _ in reported) != safe


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

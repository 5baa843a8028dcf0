"""Tests of the file of learned routes: it stays whole and readable, whatever happens to it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cache.conv_rungs import ConvCase
from diffusers_helper.machine import routes
from diffusers_helper.machine.routes import CONVOLUTION, MAX_REASON, Route, RouteStore, fastest
from tests.support.jobs import ROOT

CASE = ConvCase(
    arch="gfx1100", rocm="7.2.26015-fc0010cf6a", torch="2.13.0+rocm7.2", dtype="bfloat16",
    shape=(1, 128, 7, 66, 66), weight=(128, 128, 3, 3, 3),
    stride=(1, 2, 2), padding=(0, 1, 1), dilation=(1, 1, 1), groups=1,
)  # fmt: skip
OTHER = replace(CASE, shape=(1, 16, 7, 66, 66))


def content(folder: Path) -> dict[str, dict[str, object]]:
    return json.loads((folder / "gfx1100.json").read_text(encoding="utf-8"))["routes"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_text_of_a_case_is_stable() -> None:
    assert str(CASE) == (
        "gfx1100 rocm=7.2.26015-fc0010cf6a torch=2.13.0+rocm7.2 bfloat16 x=1x128x7x66x66 w=128x128x3x3x3 "
        "stride=1x2x2 pad=0x1x1 dilation=1x1x1 groups=1"
    )


def test_what_one_process_learns_another_knows(tmp_path: Path) -> None:
    store = RouteStore(tmp_path / "routes")
    assert store.get(CASE) == Route()
    assert not (tmp_path / "routes").exists()
    store.add_failure(CASE, "miopen", "miopenStatusUnknownError")
    store.choose(CASE, "taps", "miopen: miopenStatusUnknownError")
    store.block(OTHER, "miopen", "the engine was ended by SIGABRT")
    again = RouteStore(tmp_path / "routes")
    assert again.get(CASE) == store.get(CASE)
    assert again.get(CASE).rung == "taps"
    assert again.get(CASE).failed == {"miopen": "miopenStatusUnknownError"}
    assert again.get(OTHER).deadly == {"miopen": "the engine was ended by SIGABRT"}
    assert again.get(CASE).when.endswith("+00:00")
    assert set(again.routes("gfx1100")) == {str(CASE), str(OTHER)}


def test_the_file_is_for_people_too(tmp_path: Path) -> None:
    RouteStore(tmp_path).choose(CASE, "taps", "a\n  long \t text " + "x" * 1000)
    text = (tmp_path / "gfx1100.json").read_text(encoding="utf-8")
    assert json.loads(text)["version"] == 1
    assert len(text.splitlines()) > 5
    assert set(content(tmp_path)[str(CASE)]) == {"rung", "reason", "when"}
    reason = content(tmp_path)[str(CASE)]["reason"]
    assert isinstance(reason, str)
    assert reason.startswith("a long text xxx")
    assert len(reason) == MAX_REASON


def test_each_card_has_its_own_file(tmp_path: Path) -> None:
    store = RouteStore(tmp_path)
    store.choose(CASE, "taps", "works")
    store.choose(replace(CASE, arch="gfx1151"), "tiles", "works")
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["gfx1100.json", "gfx1151.json"]
    assert RouteStore(tmp_path).get(CASE).rung == "taps"


def test_a_blocked_rung_is_not_the_chosen_one_any_more(tmp_path: Path) -> None:
    store = RouteStore(tmp_path)
    store.choose(CASE, "miopen", "works")
    store.block(CASE, "miopen", "SIGSEGV")
    route = RouteStore(tmp_path).get(CASE)
    assert (route.rung, route.reason, route.deadly) == ("", "", {"miopen": "SIGSEGV"})


def test_a_rung_that_works_again_has_not_failed(tmp_path: Path) -> None:
    store = RouteStore(tmp_path)
    for rung in ("kitchen", "miopen"):
        store.add_failure(CASE, rung, "out of workspace")
    store.choose(CASE, "miopen", "works")
    route = RouteStore(tmp_path).get(CASE)
    assert (route.rung, route.failed) == ("miopen", {"kitchen": "out of workspace"})


def test_what_was_tried_when_a_process_died_stays_blocked(tmp_path: Path) -> None:
    store = RouteStore(tmp_path / "routes")
    store.choose(CASE, "taps", "works")
    with store.trying(CASE, "miopen"):
        assert set(RouteStore(tmp_path / "routes").get(CASE).deadly) == {"miopen"}
    with pytest.raises(KeyboardInterrupt), store.trying(CASE, "taps"):
        raise KeyboardInterrupt
    with store.trying(OTHER, "tiles"):
        pass
    again = RouteStore(tmp_path / "routes")
    assert (again.get(CASE).rung, again.get(CASE).deadly) == ("taps", {})
    assert set(again.routes("gfx1100")) == {str(CASE)}
    dying = store.trying(OTHER, "tiles")
    dying.__enter__()
    assert set(RouteStore(tmp_path / "routes").get(OTHER).deadly) == {"tiles"}


def test_a_result_replaces_what_was_known_of_its_way(tmp_path: Path) -> None:
    store = RouteStore(tmp_path)
    store.add_failure(CASE, "miopen", "out of workspace")
    store.block(CASE, "native", "SIGABRT")
    for candidate, result in {
        "miopen": {"milliseconds": 1.23456789, "error": 0.00123456, "bytes": 7},
        "taps": {"failed": "wrong"},
        "tiles": {"failed": "it took more than 30 seconds", "is_deadly": True},
    }.items():
        with store.trying(CASE, candidate) as results:
            results.append(result)
    with store.trying(CASE, "kitchen"):
        pass  # nothing is known of what was ended from outside
    route = RouteStore(tmp_path).get(CASE)
    assert (route.rung, route.measured, route.errors) == ("miopen", {"miopen": 1.2346}, {"miopen": 0.00123})
    assert (route.failed, route.peaks) == ({"taps": "wrong"}, {"miopen": 7})
    assert route.deadly == {"native": "SIGABRT", "tiles": "it took more than 30 seconds"}
    assert route.reason.startswith("measured miopen 1.23 ms; taps: wrong; native: SIGABRT; tiles: it took")


@pytest.mark.parametrize(
    ("measured", "rung"),
    [
        ({"miopen": 10, "taps": 5, "tiles": 4.9}, "taps"),
        ({"miopen": 5.2, "taps": 5}, "miopen"),
        ({"native": 1, "taps": 5, "kitchen": 1}, "kitchen"),
        ({}, ""),
    ],
)
def test_the_first_of_those_that_are_about_as_fast_is_taken(measured: dict[str, float], rung: str) -> None:
    assert fastest(CONVOLUTION, Route(measured=measured)) == rung


def test_the_newest_are_kept_and_the_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_ROUTES", 3)
    store = RouteStore(tmp_path)
    cases = [replace(CASE, groups=groups) for groups in range(1, 7)]
    store.block(cases[0], "miopen", "SIGABRT")
    for case in cases[1:]:
        store.choose(case, "taps", "works")
    assert set(content(tmp_path)) == {str(cases[0]), str(cases[4]), str(cases[5])}
    store.choose(cases[4], "native", "works")
    store.choose(cases[1], "taps", "works")
    assert set(content(tmp_path)) == {str(cases[0]), str(cases[4]), str(cases[1])}


DAMAGED = [
    b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"version": 2, "routes": {}}', b'{"version": 1}',
    b"[" * 100_000,
    *(
        b'{"version": 1, "routes": {"%s": %s}}' % (str(CASE).encode(), route)
        for route in (
            b"3", b'{"speed": 1}', b'{"rung": 5}', b'{"reason": []}', b'{"when": 5}', b'{"failed": 5}',
            b'{"deadly": ["miopen"]}', b'{"failed": {"miopen": 5}}', b'{"measured": {"miopen": "fast"}}',
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_set_aside(data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gfx1100.json").write_bytes(data)
    store = RouteStore(tmp_path)
    assert store.get(CASE) == Route()
    (aside,) = tmp_path.glob("gfx1100.json.damaged-*")
    assert aside.read_bytes() == data
    assert "gfx1100.json.damaged" in caplog.text
    store.choose(CASE, "taps", "works")
    assert RouteStore(tmp_path).get(CASE).rung == "taps"


def test_a_file_that_is_damaged_meanwhile_costs_only_what_it_held(tmp_path: Path) -> None:
    store = RouteStore(tmp_path)
    store.choose(CASE, "taps", "works")
    (tmp_path / "gfx1100.json").write_bytes(b"x")
    store.choose(OTHER, "tiles", "works")
    assert set(content(tmp_path)) == {str(OTHER)}
    (aside,) = tmp_path.glob("gfx1100.json.damaged-*")
    assert aside.read_bytes() == b"x"


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = RouteStore(tmp_path)
    store.choose(CASE, "taps", "works")
    before = (tmp_path / "gfx1100.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        store.choose(OTHER, "tiles", "works")
    assert (tmp_path / "gfx1100.json").read_bytes() == before
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]
    assert "No space left on device" in caplog.text
    assert (store.get(CASE).rung, store.get(OTHER).rung) == ("taps", "tiles")


@pytest.mark.parametrize("place", ["a file", "no folder can be made there"])
def test_a_folder_that_cannot_be_written_is_said_once(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "file" if place == "a file" else Path("/proc/longtake/routes")
    (tmp_path / "file").write_text("not a folder")
    store = RouteStore(folder)
    store.choose(CASE, "taps", "works")
    store.choose(OTHER, "tiles", "works")
    assert (store.get(CASE).rung, store.get(OTHER).rung) == ("taps", "tiles")
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = RouteStore()
    store.choose(CASE, "taps", "works")
    assert store.get(CASE).rung == "taps"
    assert names(tmp_path) == []


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from diffusers_helper.machine.routes import RouteStore
from tests.diffusers_helper.machine.test_routes import CASE as case

folder, own = Path(sys.argv[1]), int(sys.argv[2])
store = RouteStore(folder)
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    store.add_failure(replace(case, groups=1000 * own + number), "miopen", f"by {own}")
    store.add_failure(case, f"rung{own}-{number}", "of both")
"""


def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(writer_number)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for writer_number in (1, 2)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    entries = content(tmp_path)
    own_cases = {
        str(replace(CASE, groups=1000 * writer_number + number))
        for writer_number in (1, 2)
        for number in range(40)
    }
    assert set(entries) == own_cases | {str(CASE)}
    shared = entries[str(CASE)]["failed"]
    assert isinstance(shared, dict)
    assert set(shared) == {
        f"rung{writer_number}-{number}" for writer_number in (1, 2) for number in range(40)
    }
    assert not [name for name in names(tmp_path) if name.endswith(".tmp") or ".damaged" in name]

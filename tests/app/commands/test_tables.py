"""Tables of what parts of the command line say and return for each kind of input, without a program."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.cli import main
from app.cluster import ClusterTask
from app.commands import terminal
from app.commands.arguments import _without_language, aligned, command_words
from app.commands.generate import _FOLLOWS, _LEADS, Signals, _reason_to_wait
from app.commands.inspect import _lines
from app.commands.models import command as models
from app.commands.terminal import progress
from app.commands.tune import _report
from diffusers_helper.errors import InputError
from diffusers_helper.machine.signals import SIGINT, SIGTERM
from tests.support.reported_jobs import job_of

ABOUT: dict[str, Any] = {"job": "j", "time": 1.0}
OUTPUTS = "my videos"
PAUSED = (
    "The queue of this folder is paused. Continue it with: longtake jobs resume --all --outputs 'my videos'"
)


def test_a_program_says_once_why_its_job_is_not_made(snapshot: SnapshotAssertion) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"state": "paused", "message": "Paused."}, {"is_follower": True}, ""),
        ({"message": "No model.", "remedy": "Get it."}, {"is_paused": True}, ""),
        ({"state": "waiting", "message": "Full."}, {"is_follower": True}, ""),
        ({}, {"is_follower": True, "is_paused": True}, ""), ({}, {"is_paused": True}, _FOLLOWS),
        ({"state": "running"}, {"is_paused": True}, ""), ({}, {}, _FOLLOWS), ({}, {}, _LEADS),
        ({}, {}, PAUSED),
    ]  # fmt: skip
    lines = list[str]()
    for facts, service_facts, report in rows:
        state = {"is_follower": False, "is_paused": False, **service_facts}
        job = job_of(**{"id": "j", "state": "queued", **facts})
        service: Any = SimpleNamespace(
            job=lambda _, job=job: job, crew=SimpleNamespace(**state), queue=SimpleNamespace(**state)
        )
        lines.append(_reason_to_wait(service, "j", report, OUTPUTS))
    assert lines == snapshot


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("a", "bb", "c"), ("界界", "b", "c"), ("aaaaaaaaaa", "rest that is long")]
    assert aligned(rows) == ["a     bb  c", "界界  b   c", "aaaaaaaaaa  rest that is long"]


def test_the_language_is_taken_out_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, left, language in (
        (["--lang", "de", "jobs"], ["jobs"], "de"), (["jobs", "--lang=fr", "list"], ["jobs", "list"], "fr"),
        (["jobs", "list", "--lang", "ja"], ["jobs", "list"], "ja"), (["jobs"], ["jobs"], None),
        (["--language", "x"], ["--language", "x"], None),
    ):  # fmt: skip
        monkeypatch.setenv("LANGUAGE", "before")
        assert _without_language(words) == left
        assert os.environ["LANGUAGE"] == (language or "before")
    for wrong in (["--lang"], ["--lang", "xx"], ["--lang="]):
        with pytest.raises(InputError, match="expected one of en, zh, ja, de, fr, ru"):
            _without_language(wrong)
    assert command_words("`vram_cap_gb` and `steps` in `outputs`") == "--vram-cap-gb and --steps in --outputs"
    assert command_words("`model` is odd", {"model": "MODEL"}) == "MODEL is odd"


@pytest.mark.parametrize(
    ("as_json", "times", "expected"),
    [
        (
            False, [(0.0, 0), (9.9, 5), (10.0, 10), (12.0, 11), (12.5, 20)],
            ["m: 0.0093 of 0.019 GB, 1.0 MB/s, about 10 s left", "m: 0.019 of 0.019 GB"],
        ),
        (True, [(0.0, 0), (0.9, 1), (1.0, 10), (1.5, 20)], [10, 20]),
    ],
)  # fmt: skip
def test_a_download_is_told_now_and_then_and_at_its_end(
    as_json: bool, times: list[tuple[float, int]], expected: list[Any],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    now = [1000.0]
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with progress("m", "downloading", "It is kept.", as_json=as_json) as show:
        for at, done in times:
            now[0] = 1000.0 + at
            show(done * 10**6, 20 * 10**6)
    out, err = capsys.readouterr()
    if as_json:
        facts = [json.loads(line) for line in out.splitlines()]
        assert [line["done_bytes"] // 10**6 for line in facts][1:] == expected
        assert {(line["model"], line["state"], line["total_bytes"]) for line in facts} == {
            ("m", "downloading", 20 * 10**6)
        }
    else:
        assert err.splitlines()[1:] == expected
    with pytest.raises(SystemExit) as ended, progress("m", "x", "It is kept.", as_json=as_json):
        raise KeyboardInterrupt
    assert (ended.value.code, capsys.readouterr().err) == (130, "Interrupted. It is kept.\n")


def test_signals_cancel_interrupt_and_kill_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("app.commands.generate.end_within", lambda seconds, code: done.append(f"{code}"))
    monkeypatch.setattr("app.commands.generate.threading.Thread", _Now)
    acts: list[Callable[[], None]] = [
        lambda name=name: done.append(name) for name in ("cancel", "stop", "kill")
    ]
    for first, second, expected in (
        (SIGINT, SIGTERM, ["cancel", "cancel", "130", "kill"]),
        (SIGTERM, SIGINT, ["stop", "stop", "143", "kill"]),
    ):  # fmt: skip
        done.clear()
        signals = Signals(*acts)
        signals.repeat()
        assert done == []
        signals._handle(first, None)
        signals.repeat()
        signals._handle(second, None)
        assert (done, signals.number) == (expected, first)


class _Now:
    """A thread that has done its work once it is started."""

    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self.start = target


def test_the_fastest_ways_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        {"rung": rung, "milliseconds": milliseconds}
        for rung, milliseconds in (
            ("taps", {"miopen": 30.0, "taps": 10.0}), ("taps", {"taps": 1.0}), ("", {"miopen": 5.0}),
            ("miopen", {"miopen": 20.0}),
        )
    ]  # fmt: skip
    _report(results, False, {}, "rocm=7")  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "4 shapes: 2 by taps, 1 by none of them, 1 by miopen",
        "One call of each shape that the plain way supports: 30 ms instead of 50 ms (1.67 times as fast)",
    ]
    _report(results, True, {"model": "m"}, "rocm=7")  # pyright: ignore[reportArgumentType]
    assert json.loads(capsys.readouterr().out)["results"] == results


def test_the_first_problem_of_weights_is_left_to_standard_error() -> None:
    size = {"tensors": 0, "bytes": 0, "file_bytes": 0, "dtypes": {}, "parts": {}, "hints": ["Try it."]}
    inspection: Any = SimpleNamespace(
        path="a.pt", format="", model="", variant="", problems=["one", "other"], **size
    )
    assert _lines(inspection) == ["a.pt: no known format, 0 GB", "holds: not known", "Try it.", "other"]


@pytest.mark.parametrize(("is_added", "code"), [(True, 0), (False, 2)])
def test_a_copy_whose_files_are_gone_is_forgotten(
    is_added: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    added, removed = SimpleNamespace(name="copy", copy="/gone") if is_added else None, list[Any]()
    monkeypatch.setattr(models, "ADDED_MODELS", SimpleNamespace(find=lambda _: added))
    monkeypatch.setattr(models, "plan_removal", lambda _: SimpleNamespace(files={}, num_bytes=0, kept={}))
    monkeypatch.setattr(models, "remove", removed.append)
    assert main(["models", "remove", "demo", "--yes"]) == code
    assert len(removed) == is_added


def test_a_machine_joins_with_what_its_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(
        "app.commands.join.check_cluster", lambda at, _, is_public: heard.append((at, is_public))
    )
    monkeypatch.setattr("app.commands.join.join", heard.append)
    for words, task in (
        (["a:1", "--name", "desk", "--devices", "0,1", "--public"], ("a:1", True, "0,1", "desk")),
        (["auto"], ("auto", False, "auto", ClusterTask("auto").machine)),
    ):
        heard.clear()
        assert main(["join", *words]) == 0
        checked, made = heard
        assert (checked, (made.address, made.is_public, made.devices, made.machine)) == (task[:2], task)


def test_videos_are_finished_and_exported_as_the_commands_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    film, other, sound = (tmp_path / name for name in ("film.mp4", "other.mp4", "sound.mp3"))
    for file in (film, other, sound):
        file.touch()

    def ask(*arguments: Any, **more: Any) -> None:
        heard[:] = [*arguments, more]
        raise InputError("It was asked for.")

    monkeypatch.setattr("app.commands.finish.finishing_request", ask)
    words = f"--reverse --speed 0.5 --join {other} --fade 6 --sound {sound} --crf 20".split()
    assert main(["finish", str(film), *words, "--out", str(tmp_path / "outputs")]) == 2
    steps = heard.pop(1)
    assert sorted(steps.split(",")) == ["join:6", "reverse", "speed:0.5"]
    assert heard == [film, {"join": [other], "sound": str(sound), "crf": 20}]

    def exported(*arguments: Any, **more: Any) -> Any:
        heard[:] = [*arguments, more]
        yield 1, 1

    monkeypatch.setattr("diffusers_helper.output.export.exported", exported)
    target = tmp_path / "frame.png"
    assert main(["export", str(film), str(target), "--at", "1.5"]) == 0
    assert (heard[:2], heard[-1]) == ([film, target], {"at": 1.5})

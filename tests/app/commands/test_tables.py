"""Tables of what parts of the command line say and return for each kind of input, without a program."""

import io
import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.cli import main
from app.cluster import ClusterTask
from app.commands import arguments, generate, terminal
from app.commands.arguments import Parser, _without_language, aligned, command_words, run_parsed
from app.commands.generate import _FOLLOWS, _LEADS, Signals, _reason_to_wait
from app.commands.inspect import _lines
from app.commands.models import command as models
from app.commands.terminal import progress
from app.commands.tune import _report
from app.jobs.finishing import press_after
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.events import Cancelled, Failed, Finished, StepDone
from diffusers_helper.machine.signals import SIGINT, SIGTERM
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.reported_jobs import job_of
from tests.support.shared import Sharing

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


FINISHED = Finished(**ABOUT, video="v", frames=9, seconds=1.0)
FAILED = Failed(**ABOUT, message="Why.", remedy="")
CANCELLED = Cancelled(**ABOUT, video=None, frames=0)


def test_jobs_are_followed_one_after_the_other_and_the_first_code_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, ends = list[str](), dict[str, Any]()
    over, begun = job_of(id="a", state="finished"), job_of(id="a", state="running")
    then = {press_after("a"): [job_of(id="then")]}
    service: Any = SimpleNamespace(
        events=lambda job: [1, 2, 3], crew=SimpleNamespace(is_follower=False), kill=lambda: None,
        start=lambda adopt: heard.append(f"starts {adopt}"), stop=lambda: heard.append("stops"),
        queue=SimpleNamespace(cancel=lambda job: heard.append(f"cancels {job}")),
        history=SimpleNamespace(made_by=lambda press: then.get(press, [])),
    )  # fmt: skip

    def show(service: Any, job: Any, num_earlier: int, display: object, outputs: str) -> Any:
        heard.append(f"{job.id} from {num_earlier} in {outputs} by {type(display).__name__}")
        if isinstance(end := ends[job.id], BaseException):
            raise end
        return end

    monkeypatch.setattr(generate, "_show", show)
    monkeypatch.setattr(generate, "take_stdout", io.BytesIO)
    monkeypatch.setattr(generate, "_report_end", lambda _, job, outputs: heard.append(f"ends {job}"))
    b = job_of(id="b")
    for jobs, resumed, ended, code, words in (
        ([begun, b], None, (FINISHED, CANCELLED, FAILED), 130,
         ["starts False", "a from 0", "b from 0", "then from 0"]),
        ([begun], "a", (CANCELLED,), 130, ["starts False", "a from 3"]),
        ([over], "a", (FINISHED, None, FINISHED), 0, ["a from 2", "then from 0"]),
        ([begun], None, (None,), 128, ["starts False", "a from 0"]),
        ([begun, b], None, (BrokenPipeError(), FAILED), 141, ["starts False", "a from 0"]),
        ([begun, b], None, (FAILED, FINISHED), 1, ["starts False", "a from 0", "b from 0"]),
    ):  # fmt: skip
        heard.clear()
        ends |= dict(zip(("a", "b", "then"), ended, strict=False))
        arguments: Any = SimpleNamespace(json=resumed is None, resume=resumed, outputs="o")
        assert generate.follow_jobs(service, lambda _, jobs=jobs: [*jobs], arguments) == code
        shape = "JsonLines" if resumed is None else "ProgressBar"
        names = [word.split()[0] for word in words if "from" in word]
        expected = [f"{word} in o by {shape}" if "from" in word else word for word in words]
        last = {*names, *(job.id for job in jobs)}
        assert heard[: len(words) + 1] == [*expected, "stops"]
        assert {*heard[len(words) + 1 :]} == {f"ends {name}" for name in last}


def test_what_goes_on_has_its_model_and_fits(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, service = list[str](), sharing.open(start=False)
    monkeypatch.setattr(generate, "provide_model", lambda model, _: heard.append(model))
    monkeypatch.setattr(generate, "check_changes_of", lambda _, job: heard.append(job))
    over, ended = (sharing.add(service).id for _ in range(2))
    for job, state in ((over, "finished"), (ended, "cancelled")):
        service.queue.store.enter(job, "running")
        service.queue.store.enter(job, state)  # pyright: ignore[reportArgumentType]
    for resumed, parent, expected in (
        (None, over, ["demo"]), (over, None, []), (ended, None, ["demo", ended]), (None, None, []),
    ):  # fmt: skip
        heard.clear()
        asked: Any = SimpleNamespace(
            outputs=sharing.outputs, resume=resumed, branch=parent, in_process=resumed == ended
        )
        opened = generate.open_service(asked)
        assert (heard, opened._engines[0].restarts) == (expected, resumed != ended)


def test_how_a_job_is_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "longtake generate --resume j --outputs o"
    monkeypatch.setattr(generate, "report_text", lambda service, job: f"A report of {job}.")
    for state, words in (
        ("failed", f"A report of the problem, without private paths, is in {tmp_path / 'report.txt'}"),
        ("paused", f"Interrupted. Continue with: {command}"),
        ("queued", f"Interrupted. Continue with: {command}"),
        ("waiting", f"The other program makes the job. Follow it with: {command}"),
        ("finished", ""), ("cancelled", ""),
    ):  # fmt: skip
        job = job_of(id="j", state=state, folder=tmp_path)
        generate._report_end(SimpleNamespace(job=lambda _, job=job: job), "j", "o")  # pyright: ignore
        assert capsys.readouterr().err == (f"{words}\n" if words else "")
    assert JobFolder(tmp_path).report.read_text() == "A report of j."


def test_a_followed_job_is_told_by_its_events_its_waits_and_the_passing_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, reasons = list[str](), iter(["", "Full.", "Full.", ""])
    monkeypatch.setattr(generate, "_reason_to_wait", lambda *_: next(reasons))
    items: list[Any] = [(4, FAILED), None, None, None, None, (5, FINISHED)]
    display: Any = SimpleNamespace(
        begin=lambda job, paces, earlier: heard.append(f"begins after {earlier}"),
        show=lambda event: heard.append(type(event).__name__), report=heard.append,
        tick=lambda: heard.append("ticks"),
    )  # fmt: skip
    states = iter(["running", "queued"])
    service: Any = SimpleNamespace(
        events=lambda job: [1, 2, 3], job=lambda job: job_of(state=next(states)),
        follow=lambda job, after: iter([heard.append(f"after {after}"), *items][1:]),
    )  # fmt: skip
    assert generate._show(service, job_of(), 2, display, "o") == FINISHED
    assert heard == ["begins after [1, 2]", "after 2", "Failed", "ticks", "Full.", "Finished"]
    items[:] = [(1, StepDone(**ABOUT, section=1, step=1, steps=2))]
    assert generate._show(service, job_of(), 0, display, "o") is None


def test_signals_are_given_back_and_the_end_of_a_job_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = list[Any]()
    monkeypatch.setattr("app.commands.generate.threading.Thread", _Now)
    timer = SimpleNamespace(cancel=lambda: heard.append("no exit"))
    monkeypatch.setattr("app.commands.generate.end_within", lambda seconds, code: timer)
    before = [signal.getsignal(number) for number in (SIGINT, SIGTERM)]
    with Signals(lambda: None, lambda: None, lambda: None) as signals:
        assert signal.getsignal(SIGINT) == signals._handle
        for _ in range(2):
            signals._handle(SIGINT, None)
    assert ([signal.getsignal(number) for number in (SIGINT, SIGTERM)], heard) == (before, ["no exit"])


def test_how_a_command_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    levels = list[int]()
    for name in ("prepare", "load_added_models"):
        monkeypatch.setattr(arguments, name, lambda *_: None)
    monkeypatch.setattr(arguments, "start_log", levels.append)
    monkeypatch.setattr(arguments.os, "dup2", lambda *_: None)
    place = "Check its folder's rights and the disk's space."
    for error, code, words in (
        (InputError("`steps` is odd.", "Set it."), 2, "STEPS is odd. Set it.\n"),
        (LongtakeError("It broke.", "Try again."), 1, "It broke. Try again.\n"), (BrokenPipeError(), 130, ""),
        (PermissionError(13, "No", "/x"), 1, f"/x cannot be used (No). {place}\n"),
        (OSError(28, "Full"), 1, f"A file, or the standard output, cannot be used (Full). {place}\n"),
        (OSError(9, "Odd"), None, ""),
    ):  # fmt: skip

        def run(_: object, error: Exception = error) -> int:
            raise error

        parser = Parser(prog="p")
        parser.add_argument("--verbose", action="store_true")
        parser.add_argument("--more", action="append")
        parser.set_defaults(run=run, named={"steps": "STEPS"})
        with pytest.raises(OSError, match="Odd") if code is None else nullcontext():
            assert run_parsed(lambda parser=parser: parser, ["--verbose"] * (code == 1)) == code
        assert capsys.readouterr().err == words
        assert run_parsed(lambda parser=parser: parser, ["--more", "a", "--more", "\udce9"]) == 2
        assert "--more is '\\udce9'; expected text in UTF-8" in capsys.readouterr().err
    assert levels == [30, 20, 30, 20, 20, 30]


def test_a_proxy_of_socks_and_a_find_mode_without_use_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for proxy, has_package, is_refused in (
        ("socks4://x", False, True), ("socks5h://x", False, True), ("socks5://x", True, False),
        ("http://x", False, False),
    ):  # fmt: skip
        monkeypatch.setattr("urllib.request.getproxies", lambda proxy=proxy: {"https": proxy})
        monkeypatch.setattr("importlib.util.find_spec", lambda _, has=has_package: has or None)
        with pytest.raises(InputError, match="https_proxy is") if is_refused else nullcontext():
            arguments.check_proxies()
    for kind, mode, complaints in (("rocm", "FAST", 0), ("cpu", "FAST", 1), ("cpu", None, 0)):
        monkeypatch.setenv("MIOPEN_FIND_MODE", "NORMAL")
        monkeypatch.setattr(arguments, "this_machine", lambda _, kind=kind: SimpleNamespace(kind=kind))
        arguments.apply_find_mode(SimpleNamespace(miopen_find_mode=mode))  # pyright: ignore
        assert os.environ["MIOPEN_FIND_MODE"] == mode or (mode is None)
        assert capsys.readouterr().err.count("has no effect here") == complaints


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
    assert main(["finish", str(film), "--sound", str(sound), "--out", str(tmp_path / "outputs")]) == 2
    assert (heard[1], heard[2]["join"]) == ("speed:1", [])

    def exported(*arguments: Any, **more: Any) -> Any:
        heard[:] = [*arguments, more]
        yield 1, 1

    monkeypatch.setattr("diffusers_helper.output.export.exported", exported)
    target = tmp_path / "frame.png"
    assert main(["export", str(film), str(target), "--at", "1.5"]) == 0
    assert (heard[:2], heard[-1]) == ([film, target], {"at": 1.5})

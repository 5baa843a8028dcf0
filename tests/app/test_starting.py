"""Tests of the start and the end of programs: Ctrl-C, and the rights of what they write."""

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import starting
from app.commands.generate import Signals
from app.jobs.making.worker import Worker
from app.jobs.service import JobService
from app.starting import UMASK_VARIABLE, prepare
from diffusers_helper.errors import InputError
from tests.support.jobs import ROOT, TIMEOUT, processes_in_group, wait_until
from tests.support.program import Program, answer, stream, until
from tests.support.staged_engine import StagedEngine


@pytest.fixture(autouse=True)
def kept_umask() -> Iterator[None]:
    before = os.umask(0o022)
    os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize(
    ("given", "mask"), [("", 0o077), ("022", 0o022), ("27", 0o027), ("0", 0), ("777", 0o777)]
)
def test_the_rights_are_the_owners_unless_a_user_sets_others(given: str, mask: int) -> None:
    prepare({UMASK_VARIABLE: given})
    assert os.umask(0o022) == mask


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    script = (
        "import resource, sys; from app.starting import prepare; kind = resource.RLIMIT_NOFILE\n"
        "resource.setrlimit(kind, (128, 512)); prepare({}); print(*resource.getrlimit(kind))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"512 512\n"


@pytest.mark.parametrize("given", ["8", "x", "-1", "1000", "rwx", "0x3f", "\udcff"])
def test_rights_that_are_none_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=f"^{UMASK_VARIABLE} is .*; expected the rights to withhold"):
        prepare({UMASK_VARIABLE: given})


def test_a_wrong_variable_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(UMASK_VARIABLE, "rw")
    code, out, err = answer(capsys, "jobs", "list")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.slow
def test_all_that_a_job_writes_has_the_rights_that_are_asked_for(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(UMASK_VARIABLE, "027")
    expected = {"0o750", "0o640"}
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    code, _, err = program.run("generate", script="sections=2 steps=1")
    assert code == 0, err
    assert program.run("generate", "--steps", "3", "--save-preset", "x")[0] == 0
    assert modes(program.outputs) == {*expected, "0o600"}
    assert modes(tmp_path / "XDG_CONFIG_HOME") <= expected


def test_the_code_with_which_a_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise ZeroDivisionError(code)

    monkeypatch.setattr(starting, "handle", lambda _: None)
    monkeypatch.setattr(starting, "unblock_ending", lambda: None)
    monkeypatch.setattr(starting.os, "_exit", leave)
    for end, code in ((SystemExit(), 0), (SystemExit(3), 3), (KeyboardInterrupt(), 130), (7, 7)):

        def main(end: Any = end) -> int:
            if isinstance(end, BaseException):
                raise end
            return end

        with pytest.raises(ZeroDivisionError, match=rf"^{code}$"):
            starting.run(main)


@pytest.mark.slow
def test_comfyui_keeps_its_own_rights() -> None:
    script = "import os; os.umask(0o022); import rocm_nodes, rocm_nodes.registry; print(oct(os.umask(0)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "0o22", done.stderr


@pytest.mark.slow
def test_ctrl_c_cancels_what_a_shell_started_in_the_background(program: Program) -> None:
    process = program.start("generate", "--json", script="steps=2 at=1 fault=hang", background=True)
    job = until(process, "step_done")["job"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, err
    wait_until(lambda: not processes_in_group(process.pid))  # the kernel takes a moment
    assert JobService(program.outputs).job(job).state == "cancelled"


WAITING = """
import atexit, sys, threading, time
from app.starting import run
def main():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
def main_that_ends():
    threading.Thread(target=time.sleep, args=(10**6,)).start()  # would keep the interpreter from ending
    atexit.register(print, "too late")
    return 7
def main_that_swallows():
    try:
        main()
    except KeyboardInterrupt:
        print("tidying", flush=True)
        while True:
            time.sleep(0.01)
run({main})
"""


def waiting(main: str = "main") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WAITING.format(main=main)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_end_waits_for_no_thread() -> None:
    with waiting("main_that_ends") as process:
        out, _ = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (7, b"")


def test_the_first_ctrl_c_raises_and_ends_quietly() -> None:
    with waiting() as process:
        assert stream(process.stdout).readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=TIMEOUT) == (b"", b"")
    assert process.returncode == 130


def test_a_second_ctrl_c_ends_a_program_that_swallows_the_first() -> None:
    with waiting("main_that_swallows") as process:
        for line in (b"ready\n", b"tidying\n"):
            assert stream(process.stdout).readline() == line
            process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=TIMEOUT) == (b"", b"")
    assert process.returncode == 130


def test_a_second_signal_ends_the_process_even_if_nothing_reacts() -> None:
    text = """
import threading
from app.commands import generate
generate._KILL_SECONDS = 0.05
stuck = threading.Event()
with generate.Signals(stuck.wait, lambda: print("reacting", flush=True), stuck.wait):
    print("ready", flush=True)
    while True:
        stuck.wait(0.01)
"""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert stream(process.stdout).readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert stream(process.stdout).readline() == b"reacting\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_children_of_a_command_too(number: signal.Signals) -> None:
    waiting = "import subprocess, sys; print('ready', flush=True); sys.stdin.read()"
    text = (
        "import subprocess, sys\nfrom app.starting import run\n"
        f"run(lambda: subprocess.run([sys.executable, '-c', {waiting!r}]).returncode)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    with process:
        assert stream(process.stdout).readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT) == 128 + number
    wait_until(lambda: not processes_in_group(process.pid))  # the kernel takes a moment


def test_only_a_closed_terminal_stays_ignored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        with Signals(nothing, nothing, nothing) as signals:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) == signals._handle
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def nothing() -> None:
    """React to a signal."""


def test_a_signal_before_the_start_is_not_lost() -> None:
    reported: list[str] = []
    with Signals(nothing, lambda: reported.append("stop"), nothing) as signals:
        signals.repeat()
        assert reported == []
        signals.number = signal.SIGTERM
        signals.repeat()
        assert reported == ["stop"]


def test_a_service_that_is_stopped_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = JobService(tmp_path / "outputs", StagedEngine())
    start = Worker.start

    def stop_first(worker: Worker, *given: Any) -> None:
        stopper = threading.Thread(target=service.stop)
        stopper.start()
        stopper.join()
        start(worker, *given)
        worker._thread.join(TIMEOUT)
        assert not worker._thread.is_alive()

    monkeypatch.setattr(Worker, "start", stop_first)
    service.start(adopt=False)
    assert not service.crew.workers

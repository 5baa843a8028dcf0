"""Tests of the engine process: its place among processes, its pipes, and its end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from app.commands.generate import InProcessEngine
from app.jobs.job import Job
from app.jobs.making.engine_client import EngineDied, EngineProcess, Orders, Trial
from diffusers_helper.events import Cancelled, Event, Failed, Finished, JobStarted, StepDone, Warned
from diffusers_helper.job.card import CardLost
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import (
    ROOT,
    STAND_IN,
    asked_in,
    engine_facts,
    is_running,
    processes_in_group,
    wait_until,
    write_blank_model,
)  # fmt: skip

# A parent that can be killed: it starts an engine and one job, and prints the engine's id and the events.
PARENT = """
import json, signal, sys, time
from pathlib import Path
from app.jobs.making.engine_client import EngineProcess
from app.jobs.job import Job
from diffusers_helper.conditions.pictures import store_request
from diffusers_helper.events import to_dict
from diffusers_helper.machine.signals import ENDING
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
folder, script, model = sys.argv[1:]
request = GenerationRequest(image="unused", prompt=script, model=model)
store_request(request, {}, JobFolder(Path(folder)), final_folder=JobFolder(Path(folder)))
engine = EngineProcess()
signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # as in a thread that starts an engine
engine.start()
signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
print(engine.pid, flush=True)
for event in engine.run(Job(id="job", state="running", request=request, folder=Path(folder), created=0.0)):
    if event is not None:
        print(json.dumps(to_dict(event)), flush=True)
time.sleep(600)
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{STAND_IN}")
    return str(write_blank_model(tmp_path / "model"))


@pytest.fixture
def engine(model: str) -> Iterator[EngineProcess]:
    engine = EngineProcess()
    yield engine
    engine.close()


def job_for(folder: Path, model: str, script: str, name: str = "job") -> Job:
    request = GenerationRequest(image="unused", prompt=script, model=model)
    asked_in(folder / name, request)
    return Job(id=name, state="running", request=request, folder=folder / name, created=0.0)


def reported(events: Iterator[Event | None]) -> list[Event]:
    return [event for event in events if event is not None]


class Parent:
    """A process that runs one job and lives on, in a group of its own."""

    def __init__(self, folder: Path, model: str, script: str) -> None:
        (folder / "job").mkdir()
        command = [sys.executable, "-c", PARENT, str(folder / "job"), script, model]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        self.engine = int(self._out.readline())

    @property
    def _out(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def until(self, name: str, count: int = 1) -> dict[str, Any]:
        while True:
            event = json.loads(self._out.readline())
            count -= event["event"] == name
            if not count:
                return event

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._out.close()
        self.process.wait()


@pytest.fixture
def parents() -> Iterator[list[Parent]]:
    started: list[Parent] = []
    yield started
    for parent in started:
        parent.end()


# the event, and its count, after which the engine's parent is killed
PLACES = {
    "while it loads its libraries": ("", ""),
    "waiting for a job": ("steps=1", "finished"),
    "in native code with the interpreter lock": ("fault=gil at=1", "step_done"),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_engine_ends_with_its_killed_parent(
    tmp_path: Path, model: str, parents: list[Parent], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, event = PLACES[place]
    if not event:
        monkeypatch.setenv("STAND_IN_IMPORT_GATE", str(tmp_path / "never"))
    parent = Parent(tmp_path, model, script)
    parents.append(parent)
    if event:
        parent.until(event)
    assert is_running(parent.engine)
    parent.process.kill()
    parent.process.wait()
    wait_until(lambda: not is_running(parent.engine))
    wait_until(lambda: not processes_in_group(parent.process.pid))  # the kernel takes a moment


def test_the_engine_shares_group_and_environment_and_leaves_interrupts_to_its_parent(
    tmp_path: Path, model: str, parents: list[Parent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_TEST_MARK", "seen")
    parent = Parent(tmp_path, model, "fault=wait at=1")
    parents.append(parent)
    parent.until("step_done")
    assert os.getpgid(parent.engine) == parent.process.pid
    assert b"LONGTAKE_TEST_MARK=seen" in Path(f"/proc/{parent.engine}/environ").read_bytes().split(b"\0")
    status = Path(f"/proc/{parent.engine}/status").read_text(encoding="utf-8")
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    ending = [1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert int(masks["SigIgn"], 16) & ending[0]
    assert not int(masks["SigBlk"], 16) & sum(ending)


def test_events_come_as_they_were_sent_whatever_libraries_print(
    tmp_path: Path, model: str, engine: EngineProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    events = reported(engine.run(job_for(tmp_path, model, "sections=1 steps=2 at=1 fault=noise")))
    assert isinstance(events[0], JobStarted)
    assert events[0] == JobStarted(job="job", time=0, sections=1, frames=37, width=64, height=64)
    assert isinstance(events[-1], Finished)
    written, reported_aside = "", ""

    def has_arrived() -> bool:  # a thread passes on what the engine writes
        nonlocal written, reported_aside
        out, err = capfd.readouterr()
        written, reported_aside = written + out, reported_aside + err
        return "from a library" in reported_aside and "and from C" in reported_aside

    wait_until(has_arrived)
    assert written == ""


def test_a_cancel_is_for_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.jobs.making.engine_client.os._exit", lambda _: None)
    sent = list[Event]()
    orders = Orders(sent.append)

    def hear(*words: str) -> None:
        facts = {"folder": "", "blocklist": []}
        lines: Any = [json.dumps({"do": word.split()[0], "job": word.split()[1], **facts}) for word in words]
        orders.listen(lines)

    hear("run a", "cancel b")
    assert sent == []
    first = orders.take()
    hear("cancel b", "run b")
    assert (first.job, first.cancel.is_cancelled, sent) == ("a", False, [])
    hear("cancel a")
    assert (first.cancel.is_cancelled, sent) == (True, [])
    hear("cancel b")
    assert sent == [Cancelled(job="b", time=0.0, video=None, frames=0)]


ENGINE = """
import json, os, sys
for line in sys.stdin:
    order = json.loads(line)
    print("words of", order["job"], os.environ["MARK"], sys.argv[-1], file=sys.stderr, flush=True)
    if order["job"] == "dies":
        os._exit(3)
    trial = None if order["blocklist"] == [] else {"case": "a case", "rung": order["blocklist"][0]["rung"]}
    print(json.dumps({"trial": trial}))
    for job in ("another", order["job"]):
        print(json.dumps({"event": "cancelled", "job": job, "time": 1.0, "video": None, "frames": 0}))
    sys.stdout.flush()
"""


def test_an_engine_that_died_is_started_again_and_only_its_last_job_explains_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARK", "environment")
    engine = EngineProcess((sys.executable, "-c", ENGINE), {"MARK": "own"})
    pids, deaths = list[int | None](), list[tuple[str, int | None, str]]()
    for name in ("first", "dies", "last"):
        job, events = job_for(tmp_path, "demo", "", name), list[Event]()
        try:
            events = reported(engine.run(job, blocklist={Trial("x", "taps"): "it died"}))
        except EngineDied as died:
            deaths.append((name, died.exit_code, died.errors))
        assert [event.job for event in events] == ([] if name == "dies" else [name])
        pids.append(engine.pid)
    assert pids[0] == pids[1] != pids[2]
    assert deaths == [("dies", 3, "words of dies own WARNING\n")]
    engine.close()


def test_an_engine_in_this_process_ends_with_its_card_and_can_be_cancelled_and_given_up(
    tmp_path: Path,
) -> None:
    engine, job = InProcessEngine(), job_for(tmp_path, "demo", "")
    cancelled = Cancelled(job="job", time=1.0, video=None, frames=0)

    def lose(*_: object) -> None:
        raise CardLost.__new__(CardLost)

    def wait(folder: Path, put: Any, token: Any) -> None:
        wait_until(lambda: token.is_cancelled)
        put(cancelled)

    engine._runner = SimpleNamespace(run=lose)
    with pytest.raises(EngineDied):
        list(engine.run(job))
    engine._runner = SimpleNamespace(run=wait)
    for act, ends in ((lambda: engine.cancel("job"), True), (engine.kill, False)):
        stream = engine.run(job)
        assert next(stream) is None
        act()
        if ends:
            assert reported(stream) == [cancelled]
        else:
            with pytest.raises(EngineDied):
                list(stream)
            engine.cancel("job")


def test_a_cancel_while_the_libraries_load_ends_the_job(
    tmp_path: Path, model: str, engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("STAND_IN_IMPORT_GATE", str(gate))
    stream = engine.run(job_for(tmp_path, model, ""))
    assert next(stream) is None
    engine.cancel("job")
    assert reported(stream) == [Cancelled(job="job", time=0.0, video=None, frames=0)]
    gate.touch()
    events = reported(engine.run(job_for(tmp_path, model, "steps=1", "next")))
    assert isinstance(events[-1], Finished)


def test_kill_ends_a_deaf_engine_and_close_leaves_no_process(
    tmp_path: Path, model: str, engine: EngineProcess
) -> None:
    stream = filter(None, engine.run(job_for(tmp_path, model, "fault=hang at=1")))
    while not isinstance(next(stream), StepDone):
        pass
    pid = engine.pid
    assert pid is not None
    engine.kill()
    with pytest.raises(EngineDied) as death:
        next(stream)
    assert death.value.exit_code == -signal.SIGKILL
    engine.start()
    assert engine.pid not in (None, pid)
    second = engine.pid or 0
    engine.close()
    engine.close()
    assert not is_running(second)


def test_an_engine_that_cannot_load_its_libraries_says_so_to_every_job(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    engine = EngineProcess()
    try:
        for name in ("one", "two"):
            (end,) = reported(engine.run(job_for(tmp_path, model, "", name)))
            assert isinstance(end, Failed)
            assert "package" in end.message
            assert "webui.sh" in end.remedy
    finally:
        engine.close()


def test_the_engine_is_ours_even_where_another_app_lies(
    tmp_path: Path, model: str, engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "app").mkdir(parents=True)
    (tmp_path / "elsewhere" / "app" / "engine.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", STAND_IN)
    events = reported(engine.run(job_for(tmp_path, model, "steps=1")))
    assert isinstance(events[1], Warned)
    assert engine_facts(events[1])["pid"] == engine.pid
    assert isinstance(events[-1], Finished)

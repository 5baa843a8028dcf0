"""Tests of the downloads beside the queue, with a local double of the hub and a stand-in for the engine."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.downloads import manager, worker
from app.jobs.downloads import process as process_module
from app.jobs.downloads.manager import DownloadOrder, Downloads
from app.jobs.downloads.process import Adding, ModelProcess
from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.models import downloads as core
from diffusers_helper.models.added import ADDED_MODELS, FILE_NAME, AddedComponent, AddedModel
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import find_model
from tests.support.hub import LIGHT_BYTES as SIZE
from tests.support.hub import Hub
from tests.support.jobs import ROOT, Studio, kill, wait_until
from tests.support.published import part_folder

INFO = find_model("framepack-f1")
WEIGHTS = "model.safetensors"
# A program that goes on with the orders of an outputs folder until it is killed.
PROGRAM = """
import sys
from pathlib import Path
from app.jobs.service import JobService
service = JobService(Path(sys.argv[1]))
service.start()
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()


@pytest.fixture
def hub(lit_hub: tuple[Hub, Path]) -> Hub:
    return lit_hub[0]


@pytest.fixture
def cache(lit_hub: tuple[Hub, Path]) -> Path:
    return lit_hub[1]


def here(cache: Path, part: str) -> int:
    """Return the bytes of a part's weights on the disk."""
    folder = part_folder(cache, INFO, part)
    return sum(file.stat().st_size for file in folder.glob("*") if WEIGHTS in file.name)


def activity(service: JobService) -> str:
    return service.downloads.progress(INFO.name).activity


def order(studio: Studio) -> Job:
    """Submit a job for the model that is not here, and order the model."""
    job = studio.submit("", model=INFO.name, mode=INFO.modes[0])
    studio.service.downloads.get(INFO.name)
    return job


@pytest.mark.slow
def test_a_job_waits_for_its_model_while_others_are_made(studio: Studio, hub: Hub, cache: Path) -> None:
    hub.gate.clear()
    job, other = order(studio), studio.submit()
    studio.service.start()
    studio.events(other)
    assert studio.service.job(other.id).state == "finished"
    waiting = studio.service.job(job.id)
    assert (waiting.state, waiting.waits, waiting.started) == ("queued", True, None)
    assert waiting.message.startswith("Its model is being downloaded: ")
    assert studio.service.queue_position(studio.submit("third").id) < 2  # the waiting one does not count
    wait_until(lambda: here(cache, "transformer") >= 2**20)
    before = studio.service.revision
    hub.gate.set()
    studio.events(job)
    assert absence_of(INFO) is None
    assert studio.service.revision != before
    done = studio.service.job(job.id)
    assert (done.state, done.message) == ("finished", "")


def test_nothing_is_downloaded_that_was_not_ordered(studio: Studio, hub: Hub) -> None:
    job = studio.submit("", model=INFO.name, mode=INFO.modes[0])
    studio.service.start()
    studio.events(studio.submit())
    waiting = studio.service.job(job.id)
    assert waiting.message == "Its model is not on this machine."
    assert waiting.remedy == "Download it on the page under Models, or with longtake models get framepack-f1."
    assert hub.asked == []
    studio.service.queue.cancel(job.id)
    assert studio.service.job(job.id).state == "cancelled"


@pytest.mark.slow
def test_a_download_rests_goes_on_at_its_bytes_and_is_checked(studio: Studio, hub: Hub, cache: Path) -> None:
    hub.gate.clear()
    downloads = studio.service.downloads
    downloads.get(INFO.name)
    studio.service.start()
    wait_until(lambda: here(cache, "transformer") >= 2**20)
    wait_until(lambda: downloads.progress(INFO.name).total_bytes < 2**30)  # as the hub lists it
    now = downloads.progress(INFO.name)
    assert (now.activity, now.total_bytes) == ("getting", 5 * SIZE + (8 + 3) * len("{}"))
    downloads.pause(INFO.name)
    wait_until(lambda: not downloads._running)
    paused = downloads.progress(INFO.name)
    assert paused.activity == "paused"
    assert paused.done_bytes >= 2**20
    kept = here(cache, "transformer")
    hub.gate.set()
    begun = len(hub.asked)
    downloads.get(INFO.name)
    wait_until(lambda: absence_of(INFO) is None)
    assert hub.asked[begun:].count(("lllyasviel/FramePack_F1_I2V_HY_20250503/model.safetensors", kept)) == 1
    assert here(cache, "transformer") == SIZE
    wait_until(lambda: not activity(studio.service))

    file = (part_folder(cache, INFO, "vae") / WEIGHTS).resolve()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    downloads.begin("verify", INFO.name)
    assert downloads.problems(INFO.name) is None
    wait_until(lambda: downloads.problems(INFO.name) is not None)
    problems = downloads.problems(INFO.name) or []
    assert sum("has a wrong checksum" in problem for problem in problems) == 1
    downloads.cancel(INFO.name)
    assert downloads.problems(INFO.name) is None


@pytest.mark.slow
def test_a_killed_program_leaves_an_order_that_the_next_one_executes(
    studio: Studio, hub: Hub, cache: Path
) -> None:
    hub.gate.clear()
    job = order(studio)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(studio.outputs)], cwd=ROOT, stdin=subprocess.PIPE, text=True
    )
    wait_until(lambda: here(cache, "transformer") >= 2**20)
    kill(process)
    hub.gate.set()
    begun = len(hub.asked)
    studio.service.start()
    studio.events(job)
    assert absence_of(INFO) is None
    begins = [begin for path, begin in hub.asked[begun:] if "FramePack_F1" in path and WEIGHTS in path]
    assert begins
    assert begins[0] >= 2**20


def test_no_order_is_taken_without_room_and_only_what_was_ordered_can_rest(
    studio: Studio, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.service.downloads.pause(INFO.name)
    assert not activity(studio.service)
    monkeypatch.setattr(core.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30))
    with pytest.raises(NotHere):
        studio.service.downloads.get(INFO.name)
    assert not activity(studio.service)


def test_a_model_of_own_files_is_checked_and_one_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "longtake" / FILE_NAME)
    part = AddedComponent(find_model("demo").components["transformer"].location)
    ADDED_MODELS.add(AddedModel("mine", "Mine", "demo", {"transformer": part}))
    check = ModelProcess("verify", "mine")
    wait_until(lambda: check.is_over)
    assert (check.has_failed, check.message, check.problems) == (False, "", [])
    assert check.total > 10_000_000
    check.end()
    downloads = Downloads(tmp_path, lambda: None)
    for _ in range(2):  # a check that is over begins anew when it is asked for
        downloads.begin("verify", "gone")
        assert downloads.progress("gone").activity == "verifying"
        wait_until(lambda: downloads.problems("gone") is not None)
        assert "`model` is 'gone'" in str(downloads.problems("gone"))
        downloads._running["verify", "gone"].end()


@pytest.mark.parametrize(
    ("task", "code", "errors", "message"),
    [
        ("get", 0, "a notice", ""), ("convert", 2, "progress\nIt is too large.", "It is too large."),
        ("get", 1, "Traceback\nKeyError: 1", "The process for it has died (KeyError: 1)."),
        ("convert", -9, "", "The process for it has died (exit code -9)."),
    ],
)  # fmt: skip
def test_a_process_that_fails_tells_its_last_line(task: str, code: int, errors: str, message: str) -> None:
    process: Any = ModelProcess.__new__(ModelProcess)
    process.task, process.message, process._process = task, "", SimpleNamespace(returncode=code)
    process._child = SimpleNamespace(errors=SimpleNamespace(text=lambda: errors))
    assert (process.has_failed, process.message) == (code != 0, message)


def test_a_model_is_told_by_what_happens_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    parts = [
        SimpleNamespace(here_bytes=here, missing_bytes=missing) for here, missing in ((30, 50), (10, 10))
    ]
    monkeypatch.setattr(manager, "installed_components", lambda _: parts)
    monkeypatch.setattr(manager, "missing_components", lambda _: parts)
    now = [0.0]
    monkeypatch.setattr(manager, "time", SimpleNamespace(monotonic=lambda: now[0]))
    downloads, name = Downloads(tmp_path / "longtake" / "downloads", lambda: None), INFO.name
    (tmp_path / "longtake").mkdir()
    lines = list[str]()

    def tell(what: str) -> None:
        problems, reason = downloads.problems(name), " ".join(downloads.reason_to_wait(name).values())
        lines.append(f"{what}: {downloads.progress(name)} | {reason} | {problems} | {downloads.share}")

    tell("nothing")
    for order in (
        DownloadOrder("wanted"), DownloadOrder("paused"), DownloadOrder("failed", "No room.", "Free it."),
        DownloadOrder("wanted"),
    ):  # fmt: skip
        downloads._order(name, order)
        tell(f"{order}")
    process: Any = SimpleNamespace(total=200, done=50, bytes_per_second=10.0, is_over=False, has_failed=False)
    downloads._running["get", name] = process
    for done, seconds, rate in ((50, 0.5, 10.0), (100, 1.4, 10.0), (100, 1.6, 10.0), (100, 1.6, 0.0)):
        process.done, now[0], process.bytes_per_second = done, seconds, rate
        tell(f"{done} of 200 bytes after {seconds} s")
    failed: Any = SimpleNamespace(is_over=True, has_failed=True, message="Why.", remedy="Do.", problems=["p"])
    over: Any = SimpleNamespace(is_over=True, has_failed=False, message="", remedy="", problems=["p"])
    for kind, task in (
        ("convert", failed), ("convert", process), ("verify", process), ("verify", failed), ("verify", over),
    ):  # fmt: skip
        downloads._running[kind, name] = task  # pyright: ignore[reportArgumentType]
        tell(f"{kind}, {'over' if task.is_over else 'running'}")
    assert lines == snapshot


class Process:
    """A process that does nothing, which tells when it begins and ends."""

    heard: ClassVar = list[str]()
    is_over = has_failed = False
    message, remedy, total = "No room.", "Free it.", 0

    def __init__(self, task: str, name: str, *, lock: Any) -> None:
        self.lock = lock
        self.heard.append(f"begins to {task} {name}")

    def end(self) -> None:
        self.heard.append("ends")
        self.lock.release()


def running(*programs: Downloads) -> Any:
    (process,) = [process for program in programs for process in program._running.values()]
    return process


def test_orders_are_executed_by_one_program_at_a_time_and_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, parts, names, changes = Process.heard, ["a part"], [INFO.name], list[int]()

    monkeypatch.setattr(manager, "ModelProcess", Process)
    monkeypatch.setattr(manager, "missing_components", lambda _: parts)
    monkeypatch.setattr(manager, "model_names", lambda: names)
    monkeypatch.setattr(manager, "absence_of", lambda _: SimpleNamespace(has_room=True) if parts else None)
    (tmp_path / "longtake").mkdir()
    first, second = (Downloads(tmp_path / "longtake" / "downloads", lambda: changes.append(1)) for _ in "ab")

    def looks(*programs: Downloads) -> list[str]:
        heard.clear()
        for program in programs:
            program._update()
        return [*heard]

    first.get(INFO.name)
    for name, content in (("demo", "{"), ("wan-5b", '{"state": 1}'), ("wan-a14b", "[]")):
        (tmp_path / "longtake" / "downloads" / f"{name}.json").write_text(content)
    begun, order = f"begins to get {INFO.name}", first._folder / f"{INFO.name}.json"
    assert (looks(first, second), looks(first, second)) == ([begun], [])
    process = running(first, second)
    process.is_over = process.has_failed = True
    assert looks(first, second) == ["ends"]
    assert second._orders() == {INFO.name: DownloadOrder("failed", "No room.", "Free it.")}
    second.get(INFO.name)
    assert looks(second, first) == [begun]
    before = len(changes)
    first.pause(INFO.name)
    assert (looks(second), first._orders()[INFO.name].state, len(changes)) == (["ends"], "paused", before + 2)
    first.get(INFO.name)
    assert looks(first) == [begun]
    names.clear()  # a user has removed it
    assert looks(first) == ["ends"]
    names.append(INFO.name)
    looks(first)
    running(first).is_over = True
    parts.clear()
    assert (looks(first), order.exists()) == (["ends"], False)
    first.get(INFO.name)
    assert not order.exists()  # all of it is here
    parts.append("a part")
    first.get(INFO.name)
    assert looks(first) == [begun]
    before = len(changes)
    first.cancel(INFO.name)
    assert (heard[1:], order.exists(), len(changes)) == (["ends"], False, before + 1)
    first.get(INFO.name)
    assert looks(first) == [begun]

    def fail() -> None:
        first._stopping.set()
        raise OSError("The disk is away.")

    monkeypatch.setattr(first, "_update", fail)
    first._work()
    assert (heard[1:], order.exists()) == (["ends"], True)  # for the next program


def test_one_model_is_added_at_a_time_and_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adding, file = Adding(), tmp_path / "weights" / "own file"
    idle, told = {"name": "", "seconds": 0, "problem": ""}, list[tuple[str, ...]]()
    died = "The process that checks the files has died ({}). Try again."
    ends: dict[str, tuple[int, str, str]] = {
        "bad": (2, f"reading\n{file} is unlike /some/where/x.\n", "own file is unlike <path>/x."),
        "worse": (1, "Wrong.", "Wrong."), "dead": (-9, "", died.format("exit code -9")),
        "hostile": (3, "Traceback\n" + 300 * "x", died.format(200 * "x")),
        "slow": (0, "", "The check took more than 300 seconds. Try again."), "good": (0, "a notice", ""),
    }  # fmt: skip

    def run(command: tuple[str, ...], **options: Any) -> Any:
        *_, name = command
        told.append(command[command.index("models") :])
        assert adding.facts() == idle | {"name": name}
        with pytest.raises(InputError, match="Another model is being checked"):
            adding.add("another", {}, "")
        if name == "slow":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return SimpleNamespace(returncode=ends[name][0], stderr=ends[name][1])

    monkeypatch.setattr(process_module.subprocess, "run", run)
    for name, (code, _, problem) in ends.items():
        with pytest.raises(LongtakeError) if problem else nullcontext() as refused:
            adding.add(name, {"text_encoder": file}, "" if problem else "demo")
        assert adding.facts() == idle | {"problem": problem}
        assert not refused or (str(refused.value), type(refused.value) is InputError) == (
            problem,
            code in (1, 2),
        )
    options = ("models", "add", "--json", f"--text-encoder={file}")
    *others, last = told
    assert others == [(*options, "--", name) for name in [*ends][:-1]]
    assert last == (*options, "--base=demo", "--", "good")


def test_the_process_tells_its_progress_and_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(info: object, count: Any) -> Any:
        for read, problems in ((7, ["p"]), (9, [])):
            count(read)
            yield SimpleNamespace(component="vae", checked="whole", problems=problems)

    def get(info: object, tell: Any) -> None:
        tell(3, 9)
        raise LongtakeError("It broke.", "Try again.")

    for name in ("ignore_ctrl_c", "end_with", "load_added_models", "find_model"):
        monkeypatch.setattr(worker, name, lambda *_, **__: None)
    monkeypatch.setattr(worker.sys, "stdin", SimpleNamespace(fileno=lambda: 0))
    parts = [SimpleNamespace(here_bytes=size) for size in (6, 4)]
    monkeypatch.setattr(worker, "installed_components", lambda _: parts)
    monkeypatch.setattr(worker, "verify", verify)
    monkeypatch.setattr(worker, "get_model", get)
    about = {"part": "vae", "checked": "whole"}
    verified = [(0, 10), (7, 10), about | {"problems": ["p"]}, (10, 10), about | {"problems": []}]
    for task, code, told in (
        ("verify", 0, verified),
        ("get", 1, [(3, 9), {"message": "It broke.", "remedy": "Try again."}]),
    ):
        assert worker.main(task, "m") == code
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [tuple(line.values()) if "done_bytes" in line else line for line in lines] == told

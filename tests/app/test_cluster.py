"""Tests of cards of other machines. Those with a cluster need Ray, and Ray's own nodes on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.cards import VideoCard
from app.cluster import check_cluster, remote_card
from app.host import Answer, Host, apply, changed_files
from app.jobs.job import Job
from app.jobs.making.engine_client import EngineProcess
from app.jobs.service import JobService
from app.machine import machine_of_card
from app.ui.catalogue import Catalogue
from app.ui.queue.endpoints import JobCalls
from app.ui.queue.records import card_lines
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Failed, Finished, SectionFinished, Warned
from diffusers_helper.request import GenerationRequest
from tests.support.cluster import ADDRESS, Lan, lan, served, tls
from tests.support.jobs import ROOT, wait_until, write_blank_model, write_picture
from tests.support.shared import Sharing, events, until, until_state
from tests.support.staged_engine import StagedEngine

__all__ = ["lan", "tls"]
TOKEN = {"RAY_AUTH_MODE": "token"}


def test_only_changed_files_are_carried_and_none_leaves_the_folder(tmp_path: Path) -> None:
    here, there, known = tmp_path / "here", tmp_path / "there", dict[str, tuple[int, int]]()
    (here / "sections").mkdir(parents=True)
    there.mkdir()
    for name in ("request.json", "events.jsonl", "sections/0001.safetensors", "a.tmp"):
        (here / name).write_bytes(name.encode())
    apply(there, changed_files(here, known))
    copied = sorted(path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file())
    assert copied == ["request.json", "sections/0001.safetensors"]
    (here / "video.mp4").write_bytes(b"video")
    (here / "request.json").unlink()
    news = changed_files(here, known)
    assert (list(news.files), news.removed) == (["video.mp4"], ["request.json"])
    apply(there, news)
    assert (there / "video.mp4").read_bytes() == b"video"
    assert not (there / "request.json").exists()
    for content, milliseconds in ((b"first", 1), (b"later", 2)):  # of the same size, within a second
        (here / "video.mp4").write_bytes(content)
        os.utime(here / "video.mp4", ns=(0, 10**18 + milliseconds * 10**6))
        assert changed_files(here, known).files == {"video.mp4": content}
    assert changed_files(here, known) == Answer()
    (there / "link").symlink_to("events.jsonl")
    hostile = "../out", "/etc/passwd", "states.jsonl", "x/../events.jsonl", "./states.jsonl", "link", ".", ""
    for name in hostile:
        for answer in Answer(files={name: b""}), Answer(removed=[name]):
            with pytest.raises(InputError, match="no file of the job"):
                apply(there, answer)


def test_the_copies_of_folders_have_resolved_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "link"))
    monkeypatch.setattr(Host, "_work", lambda _: None)
    _, folder = Host({}, "card", "machine").begin("owner", "job", Answer(), {})
    assert Path(folder).parents[2] == (tmp_path / "real").resolve()


@pytest.mark.parametrize(
    ("address", "environ", "fault"),
    [
        ("192.168.1.10:6379", {}, "RAY_AUTH_MODE"),
        ("8.8.8.8:6379", TOKEN, "not in a private network"),
        ("nowhere.invalid:6379", TOKEN, "no address"),
        ("auto", {**TOKEN, "ROCR_VISIBLE_DEVICES": "0"}, "ROCR_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_a_cluster_for_strangers_is_refused(
    address: str, environ: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    check_cluster("192.168.1.10:6379", TOKEN)
    check_cluster("8.8.8.8:6379", TOKEN, is_public=True)
    with pytest.raises(InputError, match=fault):
        check_cluster(address, environ)


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed"):
        check_cluster("auto", TOKEN)


def remote(**facts: Any) -> VideoCard:
    told = {
        "name": "desk-0", "label": "card 0 of desk", "facts": asdict(machine_of_card("gfx1100:24")),
        "away": "",
        "machine": "desk", "models": ["demo"], "cap_bytes": 0, "used_bytes": 5 * 2**30,
    }  # fmt: skip
    return remote_card({**told, **facts})


def with_remote(sharing: Sharing, here: str = "0.001") -> tuple[JobService, StagedEngine]:
    """Return a service with a card of `here` GB, and one of another machine with the engine."""
    service, engine = JobService(sharing.outputs, StagedEngine(LONGTAKE_VRAM_CAP_GB=here)), StagedEngine()
    engine.card = remote()
    sharing.services.append(service)
    service.start()
    service.add_engine(engine)
    return service, engine


def test_a_job_is_not_placed_on_a_machine_that_lacks_its_files(sharing: Sharing) -> None:
    service, _ = with_remote(sharing, here="4")
    plain = sharing.add(service)
    wait_until(lambda: service.job(plain.id).state == "running")
    lora, folder = sharing.outputs.parent / "film.safetensors", write_blank_model(sharing.outputs / "mine")
    lora.write_bytes(b"weights")
    lacking = {"does not have LoRAs": {"lora": str(lora)}, "lacks the model mine": {"model": str(folder)}}
    for words, settings in lacking.items():
        job = service.queue.add(sharing.request(**settings), allow_folder=True)
        assert service.crew.why_waiting(job) == f"Waits for processor (4 GB): card 0 of desk {words}"


def test_a_card_that_is_lost_gives_its_video_back(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    service, engine = with_remote(sharing, here="4")
    service.crew.serve("cpu", leaves=True)
    lost = Failed(job="", time=0.0, message="Its machine is out of reach.", remedy="", code="card_away")
    monkeypatch.setattr(engine, "run", lambda job, **_: iter([lost]))
    job = sharing.add(service)
    wait_until(lambda: engine.card.away)
    until_state(service, job, "queued")
    why = "card 0 of desk (24 GB) cannot go on. Its machine is out of reach. The video waits for a card."
    assert service.history.transitions(job.id)[-1].reason == why
    assert [one.message for one in service.events(job.id) if isinstance(one, Warned)] == [why]
    words = "Waits for processor (4 GB) or card 0 of desk (24 GB), which are out of service"
    assert service.crew.why_waiting(service.job(job.id)) == words
    service.crew.serve("cpu")
    until_state(service, job, "running")
    assert service.job(job.id).card == "processor (4 GB)"


def test_a_job_that_fits_no_card_waits_for_those_of_a_cluster(sharing: Sharing) -> None:
    service, engine = JobService(sharing.outputs, too_small()), StagedEngine()
    sharing.services.append(service)
    job = sharing.add(service)
    service.expect_cards("The cluster is out of reach.")
    service.start()
    assert service.crew.why_waiting(job) == "Waits for a card that it fits. The cluster is out of reach"
    (row,) = JobCalls(service, Catalogue()).jobs_queue()["jobs"]
    assert row["now"].startswith("Waits for a card that it fits. The cluster is out of reach")
    engine.card = remote()
    service.add_engine(engine)
    engine.go(1000)
    assert isinstance(events(service, job)[-1], Finished)
    assert service.job(job.id).card == "card 0 of desk (24 GB)"


def test_ray_is_not_imported_without_need() -> None:
    code = "import sys, app.web.server, app.cli, app.cluster; raise SystemExit('ray' in sys.modules)"
    assert subprocess.run((sys.executable, "-c", code), cwd=ROOT, check=False).returncode == 0


@pytest.fixture(scope="module", autouse=True)
def all_threads() -> Iterator[None]:
    """Let engines here have all processors, like those of `join cpu`; one processor rounds in another way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", str(os.cpu_count()))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    pytest.importorskip("ray")  # with which alone it is compared with another one
    folder = tmp_path_factory.mktemp("alone")
    service = JobService(folder / "outputs", EngineProcess())
    service.start()
    try:
        return made(service, service.queue.add(request(folder)))
    finally:
        service.stop()


def request(folder: Path) -> GenerationRequest:
    picture = str(write_picture(folder / "picture.png"))
    return GenerationRequest(
        image=picture, prompt="a red ball", seconds=3.6, steps=3, model="demo", mode="forward"
    )


def made(service: JobService, job: Job) -> bytes:
    """Wait for the end of a job, all of whose sections are made once, and return its video."""
    found = events(service, job)
    end = found[-1]
    assert isinstance(end, Finished), end
    assert [one.section for one in found if isinstance(one, SectionFinished)] == [1, 2, 3]
    return Path(end.video).read_bytes()


def too_small() -> StagedEngine:
    return StagedEngine(LONGTAKE_VRAM_CAP_GB="0.001")


def is_there(service: JobService) -> bool:
    return any(worker.card.machine and worker.is_in_service for worker in service.crew.workers)


def begun(service: JobService, folder: Path) -> Job:
    wait_until(lambda: is_there(service))
    job = service.queue.add(request(folder))
    until(service, job, SectionFinished)
    assert service.job(job.id).card == "processor of desk (2 GB)"
    return job


@pytest.mark.slow
def test_another_card_goes_on_when_a_machine_dies(lan: Lan, tmp_path: Path, whole: bytes) -> None:
    lan.add("desk", "cpu=2")
    with served(JobService(tmp_path / "outputs", EngineProcess())) as service:
        job = begun(service, tmp_path)
        lan.machines["desk"].kill()
        assert made(service, job) == whole
        assert ", from section 2 on processor" in service.job(job.id).card
        words = [one.message for one in service.events(job.id) if isinstance(one, Warned)]
        assert any(
            "processor of desk (2 GB) cannot go on. Its machine is out of reach." in one for one in words
        )
        lan.join("desk", "cpu=2")  # as after a restart of the machine
        wait_until(lambda: is_there(service))
        assert service.engines == 2
        again = service.queue.add(request(tmp_path))
        assert made(service, again) == whole
        assert service.job(again.id).card == "processor of desk (2 GB)"


@pytest.mark.slow
def test_a_video_waits_while_its_machine_cannot_be_reached(lan: Lan, tmp_path: Path, whole: bytes) -> None:
    lan.add("desk", "cpu=2")
    with served(JobService(tmp_path / "outputs", too_small())) as service:
        job = begun(service, tmp_path)
        lan.cut("desk")
        until_state(service, job, "queued")
        assert "Its machine is out of reach." in service.history.transitions(job.id)[-1].reason
        words = "Waits for processor of desk (2 GB), which is out of service"
        assert service.crew.why_waiting(service.job(job.id)) == words
        lan.mend("desk")
        assert made(service, job) == whole


@pytest.mark.slow
def test_the_page_goes_on_without_the_head(
    lan: Lan, tmp_path: Path, whole: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lan.add("desk", "cpu=2")
    with served(JobService(tmp_path / "outputs", EngineProcess())) as service:
        job = begun(service, tmp_path)
        lan.machines["head"].kill()
        assert made(service, job) == whole
        wait_until(lambda: f"The cluster at {ADDRESS} is out of reach. Its cards are left" in caplog.text)
        assert not is_there(service)
        alone = service.queue.add(request(tmp_path))
        assert made(service, alone) == whole
        assert service.job(alone.id).card.startswith("processor (")
        lan.start_head()
        wait_until(lambda: is_there(service))
        again = service.queue.add(request(tmp_path))
        assert made(service, again) == whole
        assert service.job(again.id).card == "processor of desk (2 GB)"


PROGRAM = """
import sys
from pathlib import Path
from app.jobs.service import JobService
from tests.support.cluster import served
from tests.support.staged_engine import StagedEngine
with served(JobService(Path(sys.argv[1]), StagedEngine(LONGTAKE_VRAM_CAP_GB="0.001"))):
    sys.stdin.read()
"""


@pytest.mark.slow
def test_the_next_program_goes_on_when_one_is_killed(lan: Lan, tmp_path: Path, whole: bytes) -> None:
    lan.add("desk", "cpu=2")
    reader = JobService(tmp_path / "outputs", too_small())
    command = (sys.executable, "-c", PROGRAM, str(tmp_path / "outputs"))
    job = reader.queue.add(request(tmp_path))
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as program:
        until(reader, job, SectionFinished)
        program.kill()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE):
        assert made(reader, job) == whole


@pytest.mark.slow
def test_two_programs_share_a_card_one_after_the_other(lan: Lan, tmp_path: Path, whole: bytes) -> None:
    lan.add("desk", "cpu=2")
    with (
        served(JobService(tmp_path / "one", too_small())) as one,
        served(JobService(tmp_path / "other", too_small())) as other,
    ):
        wait_until(lambda: is_there(other))
        first = begun(one, tmp_path)
        second = other.queue.add(request(tmp_path))
        wait_until(lambda: not is_there(other))
        assert "uses it." in card_lines(other)[-1]["now"]
        assert (made(one, first), made(other, second)) == (whole, whole)


@pytest.mark.slow
def test_machines_speak_by_tls(tls: None, lan: Lan, tmp_path: Path, whole: bytes) -> None:
    lan.add("desk", "cpu=2")
    with served(JobService(tmp_path / "outputs", too_small())) as service:
        assert made(service, begun(service, tmp_path)) == whole


@pytest.mark.slow
def test_a_video_is_steered_as_on_this_machine(lan: Lan, tmp_path: Path) -> None:
    lan.add("desk", "cpu=2")
    with served(JobService(tmp_path / "far", too_small())) as far:
        wait_until(lambda: is_there(far))
        there = steered(far, tmp_path)
        cancelled = begun(far, tmp_path)
        far.queue.cancel(cancelled.id)
        end = events(far, cancelled)[-1]
        assert isinstance(end, Cancelled), end
        assert Path(end.video or "").parent == cancelled.folder
    near = JobService(tmp_path / "near", EngineProcess())
    near.start()
    try:
        assert steered(near, tmp_path) == there
    finally:
        near.stop()


def steered(service: JobService, folder: Path) -> tuple[list[str], bytes]:
    """Have a job wait, change its words, pause it, and return its states and its video."""
    job = service.queue.add(request(folder))
    service.steering.wait(job.id)
    until_state(service, job, "paused")
    service.steering.wait(job.id, on=False)
    service.steering.change(job.id, {"prompt": "a blue ball"})
    service.queue.pause(job.id)
    service.queue.resume(job.id)
    video = made(service, job)
    return [one.state for one in service.history.transitions(job.id)], video

"""Tests of jobs that finish videos: what follows a video, what is told before, and how they are asked for."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import main
from app.commands.finish import _source
from app.jobs.finishing import add_finishing, add_following, finishing_request, forecast, press_after
from app.jobs.job import Job, NoSuchJob, allows
from app.jobs.pace import PaceBook, seconds_left
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.finish.endpoints import FinishCalls, VideoSource
from app.ui.live.progress import LiveJob
from app.ui.live.scene import scene_data
from app.ui.pictures import Upload
from diffusers_helper.errors import InputError
from diffusers_helper.events import Finished, Warned
from diffusers_helper.files import file_sha256
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from tests.support.clips import scene
from tests.support.films import write_film
from tests.support.reported_jobs import job_of
from tests.support.shared import Sharing, events
from tests.support.upscale_models import body, needs_spandrel, write_network


@pytest.fixture
def film(tmp_path: Path) -> Path:
    return write_film(tmp_path / "film.mp4", [*scene(30)])


def test_what_follows_a_video_is_queued_once_and_in_turn(
    sharing: Sharing, capsys: pytest.CaptureFixture[str]
) -> None:
    service = sharing.open(adopt=False)
    sharing.go(service)
    job = sharing.add(service, "a blue ball", then="trim:0.2-, enlarge:2\nreverse", crf=20, seed=11)
    assert isinstance(events(service, job)[-1], Finished)
    (second,) = service.history.made_by(press_after(job.id))
    assert second.request.finishing is not None
    assert second.request.finishing.words == "trim:0.2-,enlarge:2"
    carried = second.request.then, second.request.prompt, second.request.crf, second.request.seed
    assert carried == ("reverse", "a blue ball", 20, 11)
    assert (second.parent, second.kept) == (job.id, 0)
    assert Path(second.request.video).read_bytes() == (JobFolder(job.folder).video).read_bytes()
    assert not forecast(service.queue.store, second.request)["is_measured"]
    events(service, second)
    told, done = forecast(service.queue.store, second.request), service.job(second.id)
    assert told["is_measured"]
    assert told["work_seconds"] == pytest.approx((done.ended or 0) - (done.started or 0))
    again = finishing_request(service.job(job.id), "reverse", crf=3)
    assert (again.prompt, again.seed, again.crf) == ("a blue ball", 11, 3)
    (third,) = service.history.made_by(press_after(second.id))
    assert (third.parent, third.request.then) == (second.id, "")
    pace = PaceBook(service).pace(job.request.model)
    assert (pace and pace.jobs, second.request.model) == (1, job.request.model)
    # After a crash before the end was written, the end comes again.
    add_following(service.queue.store, service.job(job.id), JobFolder(job.folder).video)
    assert service.history.made_by(press_after(job.id)) == [service.job(second.id)]
    assert [node.job.id for node in service.history.tree(job.id)] == [job.id, second.id, third.id]
    assert main(["jobs", "list", "--outputs", str(service.queue.store.outputs)]) == 0
    seconds = second.request.finishing.result.seconds
    assert seconds != second.request.seconds
    assert f"{seconds:5.1f} s  trim 0.2- · enlarge 2: a blue ball" in capsys.readouterr().out


def test_what_cannot_follow_is_said_and_the_video_is_finished(sharing: Sharing) -> None:
    service = sharing.open()
    sharing.go(service)
    job = sharing.add(service, then="smooth:24")
    *_, warned, end = events(service, job)
    assert isinstance(end, Finished)
    assert isinstance(warned, Warned)
    assert "more than the 30 frames per second" in warned.message
    assert not service.history.made_by(press_after(job.id))


def calls(service: JobService) -> FinishCalls:
    return FinishCalls(service, Catalogue())


def test_programs_finish_jobs_and_uploads(
    sharing: Sharing, film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    service = sharing.open()
    sharing.go(service)
    job = sharing.add(service, "a blue ball")
    events(service, job)
    upload = VideoSource(path=str(film))
    steps = "join:6,enlarge:2,smooth:60"
    plan = calls(service).finish_plan(VideoSource(job=job.id), steps, [upload])
    assert (plan["width"], plan["height"], plan["fps"], plan["is_measured"]) == (192, 128, 60, False)
    assert plan["frames"] == 2 * (service.job(job.id).frames + 30 - 6)
    record = calls(service).finish_start(VideoSource(job=job.id), steps, [upload], Upload(path=str(film)))
    finishing = service.job(record["id"])
    assert record["title"] == "a blue ball"
    assert record["request"]["join"] == f"jobs/{finishing.id}/original_1"
    assert record["about"] == "2.0 s · join 6 · enlarge 2 · smooth 60"
    assert not any(allows(finishing, action) for action in ("branch", "change", "edit"))
    live = LiveJob(replace(finishing, state="paused", started=1.0))
    scene_facts = scene_data(live, 2.0, str)
    assert (live.sections, scene_facts["steering"]) == (2, None)
    settings = [("Prompt", "a blue ball", True), ("Seed", "31337", False), ("Finish", steps, True)]
    assert scene_facts["settings"] == settings
    for act in (
        lambda: service.queue.branch(finishing.id, 1),
        lambda: service.queue.extend(finishing.id, 2.0),
        lambda: service.queue.edit(finishing.id, job.request),
        lambda: service.steering.change(finishing.id, {"prompt": "a red ball"}),
    ):
        with pytest.raises(InputError, match="finishes a video; expected one that generates it"):
            act()
    assert Lineage.read(JobFolder(finishing.folder).lineage).parent == job.id
    assert seconds_left([finishing], PaceBook(service)) == pytest.approx([plan["work_seconds"]])
    for source, problem in {
        VideoSource(path="/etc/passwd"): "not an upload",
        VideoSource(job="x"): "no job",
    }.items():
        with pytest.raises(InputError, match=problem):
            calls(service).finish_plan(source, steps)


@needs_spandrel
def test_a_network_of_the_users_folder_is_queued_with_its_checksum(
    sharing: Sharing, film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_UPSCALE_MODELS", str(tmp_path / "networks"))
    write_network(tmp_path / "networks" / "own.safetensors", body())
    checksum = file_sha256(tmp_path / "networks" / "own.safetensors")[:8]
    request = finishing_request(film, "enlarge:2,weights:own")
    job = add_finishing(sharing.open().queue, request, film)
    assert job.request.finish == f"source:96x64*30@30,enlarge:2,weights:own@{checksum}"
    write_network(tmp_path / "networks" / "own.safetensors", body(seed=2))
    with pytest.raises(InputError, match=f"is no longer the network weights:own@{checksum}"):
        add_finishing(sharing.open().queue, request, film)


def test_the_command_tells_what_it_would_make(
    film: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell = ["--out", str(tmp_path / "outputs"), "--dry-run"]
    assert (
        main(["finish", str(film), "--speed", "0.5", "--smooth", "2x", "--join", str(film), *tell, "--json"])
        == 0
    )
    plan = json.loads(capsys.readouterr().out)
    assert (plan["frames"], plan["fps"], plan["seconds"]) == (120, 30, 4)
    assert main(["finish", str(film), "--trim", "-0.5", "--mute", *tell]) == 0
    assert "96x64, 15 frames, 0.50 s at 30 fps" in capsys.readouterr().out


def test_a_source_is_a_job_by_its_id_or_its_video_and_any_other_file(tmp_path: Path) -> None:
    folder, film = JobFolder(tmp_path / "outputs" / "job-a"), tmp_path / "film.mp4"
    folder.path.mkdir(parents=True)
    job = replace(job_of(), folder=folder.path, video=folder.video)

    def find(text: str) -> Job:
        if text != "job-a":
            raise NoSuchJob(text)
        return job

    service: Any = SimpleNamespace(
        job=find, queue=SimpleNamespace(store=SimpleNamespace(outputs=tmp_path / "outputs"))
    )
    for file in (film, folder.video, folder.path / "note.txt"):
        file.touch()
    assert _source(service, "job-a") is job
    assert _source(service, str(folder.video)) is job
    assert _source(service, str(film)) == film
    assert _source(service, str(folder.path / "note.txt")) == folder.path / "note.txt"
    with pytest.raises(InputError, match="no file and no job"):
        _source(service, str(tmp_path / "gone.mp4"))

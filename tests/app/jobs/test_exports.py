"""Tests of the exports of jobs: their process, its turn and end, their files, and the commands for them."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import av
import pytest

from app.cli import main
from app.jobs.job import Job
from app.ui.live.exports import frames_zip, make_export, offers
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.support.films import write_film


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    video = write_film(folder / "video.mp4")
    request = GenerationRequest(prompt="the ball")
    return Job(
        id="job", state="finished", request=request, folder=folder, created=0.0, video=video, frames=30
    )


def test_an_export_is_made_once_and_replaces_the_one_before(job: Job) -> None:
    formats = offers(job)
    assert formats["h264"]["bytes"] == job.video.stat().st_size
    assert {"hevc", "av1", "vp9", "gif", "png"} <= formats.keys()
    *steps, file = make_export(job, "vp9")
    shares = [step["share"] for step in steps]
    assert (shares, shares[0], shares[-1]) == (sorted(shares), 0, 1)
    assert (file["url"], file["name"]) == ("jobs/job/exports/30-vp9.webm", "longtake-the-ball-job.webm")
    assert list(make_export(job, "vp9")) == [file]
    with av.open(job.folder / "exports" / "30-vp9.webm") as container:
        assert len(list(container.decode(video=0))) == 30
    list(make_export(job, "gif"))
    assert [file.name for file in (job.folder / "exports").iterdir()] == ["30-gif.gif"]
    assert len(list(make_export(job, "gif"))) == 1
    os.utime(job.folder / "exports" / "30-gif.gif", (1.0, 1.0))  # it is older than the video
    assert len(list(make_export(job, "gif"))) > 1


def test_the_frames_are_sent_while_they_are_read(job: Job) -> None:
    files = sorted(job.folder.rglob("*"))
    size, parts = frames_zip(job)
    content = b"".join(parts)
    assert len(content) == size
    with ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 30
    assert sorted(job.folder.rglob("*")) == files
    parts = frames_zip(job)[1]
    assert next(parts).startswith(b"PK")
    parts.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_second_export_waits_and_a_closed_one_ends(job: Job) -> None:
    first, second = make_export(job, "vp9"), make_export(job, "av1")
    assert next(first) == {"share": 0}
    with ThreadPoolExecutor() as pool:
        shares = pool.submit(list, second)
        assert not list((job.folder / "exports").glob("*.mp4"))
        first.close()
        assert shares.result()[-1]["name"] == "longtake-the-ball-job-av1.mp4"
    assert [file.name for file in (job.folder / "exports").iterdir()] == ["30-av1.mp4"]


def test_what_cannot_be_exported_is_refused(job: Job) -> None:
    with pytest.raises(InputError, match="expected one of h264, hevc"):
        list(make_export(job, "avi"))
    with pytest.raises(InputError, match="expected one with a video"):
        offers(replace(job, video=None))


def test_the_command_writes_any_format_but_no_file_that_is_there(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *options: str) -> int:
        return main(["export", str(job.video), str(tmp_path / name), *options])

    assert run("out.mp4", "--codec", "hevc") == 0
    with av.open(tmp_path / "out.mp4") as container:
        assert container.streams.video[0].codec.name == "hevc"
    assert run("without an ending") == 0
    with av.open(tmp_path / "without an ending") as container:
        assert container.streams.video[0].codec.name == "h264"
    assert run("out.mp4") == 2
    assert run("out.webm", "--codec", "hevc") == 2
    assert run("out.avi") == 2
    complaints: Any = capsys.readouterr().err
    for text in ("it is there already", "expected vp9 for .webm", "out.avi has no known ending"):
        assert text in complaints

"""Tests of the endpoints of the History tab, without a browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.history.endpoints import HistoryCalls
from app.ui.pictures import Upload, uploaded
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.jobs import wait_until
from tests.support.shared import Sharing


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sharing]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    sharing = Sharing(tmp_path)
    yield sharing
    sharing.close()


@pytest.fixture
def service(sharing: Sharing) -> JobService:
    service = sharing.open()
    sharing.go(service)
    return service


@pytest.fixture
def calls(service: JobService) -> HistoryCalls:
    return HistoryCalls(service, Catalogue())


def made(sharing: Sharing, service: JobService, prompt: str = "a ball", **settings: object) -> Job:
    job = sharing.add(service, prompt, **settings)
    wait_until(lambda: service.job(job.id).is_over)
    return service.job(job.id)


def test_the_settings_of_a_video_come_with_its_picture(
    sharing: Sharing, service: JobService, calls: HistoryCalls
) -> None:
    job = made(sharing, service, seed=2**62 + 1)
    reported = calls.history_settings(job.id)
    picture = uploaded(Upload(path=reported["pictures"]["image"]))
    assert Path(picture).read_bytes() == JobFolder(job.folder).input.read_bytes()
    settings = json.loads(reported["text"])["settings"]
    assert (settings["seed"], settings["prompt"], settings["model"]) == (2**62 + 1, "a ball", "demo")
    assert "image" not in settings

"""Tests of the form's changes to a job that waits, without a browser."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.jobs.job import Job
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form.actions import Actions
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.support.pages import write_photo


@pytest.fixture
def service(tmp_path: Path) -> JobService:
    return JobService(tmp_path / "outputs")


@pytest.fixture
def branch(service: JobService, tmp_path: Path) -> Job:
    """Return a job that waits and keeps the first section of another one."""
    photo = str(write_photo(tmp_path / "photo.png"))
    parent = service.queue.add(GenerationRequest(image=photo, prompt="a ball", seconds=3.6))
    (parent.folder / "sections").mkdir()
    (parent.folder / "sections/0001.safetensors").write_bytes(b"latents")
    return service.queue.branch(parent.id, 1)


def changed(job: Job, upload: Path, **settings: Any) -> dict[str, Any]:
    return {**json.loads(job.request.to_json()), "image": str(upload), **settings}


def test_a_branch_keeps_its_picture_when_the_form_sends_it_back(
    service: JobService, branch: Job, tmp_path: Path
) -> None:
    upload = tmp_path / "upload.png"
    upload.write_bytes((branch.folder / "input.png").read_bytes())
    edited = Catalogue().edit(service, branch.id, changed(branch, upload, seed=9))
    assert (edited.request.seed, edited.id) == (9, branch.id)
    assert (branch.folder / "input.png").read_bytes() == upload.read_bytes()
    other = tmp_path / "other.png"
    Image.new("RGB", (320, 240), "blue").save(other)
    with pytest.raises(InputError, match="A branch cannot change image"):
        Catalogue().edit(service, branch.id, changed(branch, other))


def test_a_job_that_has_begun_keeps_its_settings(
    service: JobService, branch: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = service.queue.store
    store.enter(branch.id, "running", started=1.0)
    monkeypatch.setattr(
        "app.ui.form.actions.upload_paths", lambda _: {"image": str(branch.folder / "input.png")}
    )
    actions = Actions(service, Catalogue())
    with pytest.raises(InputError, match="has begun; expected one that has not"):
        actions.form_save(branch.id, json.loads(branch.request.to_json()) | {"seed": 9})
    assert service.job(branch.id).request.seed == branch.request.seed

"""Tests of branches in the queue: what a new job takes over, and what a waiting one may still change."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.jobs.job import Job
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage
from tests.support.jobs import Studio


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(tmp_path)


def with_sections(job: Job, count: int) -> JobFolder:
    """Give a job finished sections and the rest of what an engine leaves."""
    folder = JobFolder(job.folder)
    for part in folder.sections, folder.segments, folder.thumbs:
        part.mkdir()
    for number in range(1, count + 1):
        (folder.sections / f"{number:04}.safetensors").write_bytes(b"latents")
        (folder.segments / f"{number:04}.mp4").write_bytes(b"frames")
        (folder.thumbs / f"{number:04}.webp").write_bytes(b"picture")
    folder.encodings.write_bytes(b"encodings")
    folder.sums.write_text('{"0001.mp4": "a", "0002.mp4": "b", "0003.mp4": "c", "video-0003.mp4": "d"}')
    folder.vae.write_text('[{"section": 0, "tile": 96, "precision": "fp32", "chunk": 3}]')
    return folder


def test_a_branch_takes_over_files_and_leaves_the_other_job_alone(studio: Studio) -> None:
    job = studio.submit("a", seconds=4.8, mode="forward", cfg=2.0)
    parent = with_sections(job, 4)
    child = studio.service.queue.branch(job.id, 3, prompt="b", vram_cap_gb=5.0)
    assert (child.state, child.request.prompt, child.request.seconds) == ("queued", "b", 4.8)
    assert (child.request.cfg, child.request.vram_cap_gb, child.request.vae_tile) == (2.0, 5.0, 96)
    folder = JobFolder(child.folder)
    taken = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    sections = {f"sections/000{n}.safetensors" for n in (1, 2, 3)}
    whole = {f"segments/000{n}.mp4" for n in (1, 2)} | {f"thumbs/000{n}.webp" for n in (1, 2, 3)}
    own = {"input.png", "request.json", "states.jsonl", "lineage.json", "vae.json", "segments/sums.json"}
    assert taken == sections | whole | own | {"encodings.safetensors"}
    # What the last kept section adds to the video is made again, so that it blends with the next one.
    assert folder.sums.read_text() == '{\n "0001.mp4": "a",\n "0002.mp4": "b"\n}'
    assert Lineage.read(folder.lineage).parent == job.id
    assert parent.input.read_bytes() == folder.input.read_bytes()
    assert len(list(parent.sections.iterdir())) == 4
    studio.service.queue.remove(job.id)
    assert (folder.sections / "0003.safetensors").read_bytes() == b"latents"


def test_a_copy_of_a_branch_makes_its_sections_anew(studio: Studio) -> None:
    job = studio.submit("a", seconds=3.6)
    with_sections(job, 3)
    child = studio.service.queue.branch(job.id, 2, seed=1)
    copy = studio.service.queue.duplicate(child.id, {"seed": 2})
    lineage, own = Lineage.read(JobFolder(child.folder).lineage), Lineage.read(JobFolder(copy.folder).lineage)
    assert own == Lineage(lineage.spans)
    assert not JobFolder(copy.folder).sections.exists()
    with pytest.raises(InputError, match="expected a section from 1 to 0"):
        studio.service.queue.duplicate(child.id, {"seconds": 1.2})


def test_a_waiting_branch_changes_only_what_a_branch_may_change(studio: Studio) -> None:
    job = studio.submit("a", seconds=3.6)
    with_sections(job, 3)
    child = studio.service.queue.branch(job.id, 2)
    edited = studio.service.queue.edit(child.id, replace(child.request, prompt="b", seconds=6.0))
    assert edited.request.prompt == "b"
    for change, words in ({"crf": 30}, "cannot change crf"), ({"seconds": 2.4}, "An earlier span"):
        with pytest.raises(InputError, match=words):
            studio.service.queue.edit(child.id, replace(child.request, **change))
    with pytest.raises(InputError, match="cannot change image"):
        studio.service.queue.edit(child.id, replace(child.request, image=str(studio.picture)))


def test_a_longer_video_of_an_unfinished_job_is_refused(studio: Studio) -> None:
    job = studio.submit("a", seconds=3.6, mode="forward")
    with_sections(job, 2)
    with pytest.raises(InputError, match="is not finished"):
        studio.service.queue.extend(job.id, 1.2)
    (JobFolder(job.folder).sections / "0003.safetensors").touch()
    child = studio.service.queue.extend(job.id, 2.0, prompt="c")
    assert child.request.seconds == pytest.approx(6.0)
    assert [span.last for span in Lineage.read(JobFolder(child.folder).lineage).spans] == [3]

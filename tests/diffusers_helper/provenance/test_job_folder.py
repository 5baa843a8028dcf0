"""Tests of a job's folder: its layout, and files that are either complete or absent."""

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from diffusers_helper.files import write_atomic
from diffusers_helper.provenance.job_folder import JobFolder, new_job_id


def test_job_ids_sort_by_time_and_are_safe_names() -> None:
    ids = [new_job_id() for _ in range(20)]
    for job in ids:
        assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", job)
    assert [job[:15] for job in ids] == sorted(job[:15] for job in ids)


def test_an_id_has_the_time_of_the_whole_day(monkeypatch: pytest.MonkeyPatch) -> None:
    evening = time.struct_time((2026, 11, 21, 20, 15, 30, 5, 325, 0))
    clock = SimpleNamespace(strftime=lambda form: time.strftime(form, evening))
    monkeypatch.setattr("diffusers_helper.provenance.job_folder.time", clock)
    assert new_job_id().startswith("20261121-201530-")


def test_half_written_files_go_wherever_they_are(tmp_path: Path) -> None:
    files = [tmp_path / name for name in (".a.tmp", "segments/.b.mp4.tmp", "segments/b.mp4", "c.tmp")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    JobFolder(tmp_path).remove_leftovers()
    assert [file.exists() for file in files] == [False, False, True, True]


def test_a_new_folder_is_never_another_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["a", "a", "b"])
    monkeypatch.setattr("diffusers_helper.provenance.job_folder.new_job_id", lambda: next(ids))
    JobFolder.new(tmp_path).path.mkdir()
    assert JobFolder.new(tmp_path) == JobFolder(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_write_atomic_replaces_the_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    for data in (b"a long first version", b"short", b""):
        write_atomic(path, data)
        assert path.read_bytes() == data
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "file.bin"
    write_atomic(path, b"old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    if broken == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    seen: list[tuple[bool, int]] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        seen.append((path.exists(), os.fstat(descriptor).st_size))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    write_atomic(path, b"12345")
    assert seen == [(False, 5)]


def test_files_have_the_names_by_which_every_version_knows_them() -> None:
    folder = JobFolder(Path("job"))
    files = {
        name: str(getattr(folder, name))
        for name in vars(JobFolder)
        if isinstance(getattr(folder, name), Path)
    }
    del files["path"]
    assert files == {name: f"job/{file}" for name, file in {
        "input": "input.png", "original": "original", "sound": "sound", "first": "first.png",
        "request": "request.json", "events": "events.jsonl", "states": "states.jsonl",
        "memory": "memory.json", "log": "job.log", "vae": "vae.json", "lineage": "lineage.json",
        "encodings": "encodings.safetensors", "overflow": "vae_fp32", "weight_type": "weight_type",
        "attention": "attention", "blas": "blas",
        "kernels": "kernels", "crash_record": "shortage.json", "engine_errors": "engine_errors.txt",
        "report": "report.txt",
        "sections": "sections", "saved_steps": "sections/steps.safetensors", "segments": "segments",
        "sums": "segments/sums.json", "preview": "preview", "thumbs": "thumbs", "captures": "captures",
        "exports": "exports", "video": "video.mp4",
    }.items()}  # fmt: skip
    numbered = folder.latents(7), folder.segment(7), folder.thumb(7), folder.joined(7)
    assert [str(file) for file in numbered] == [
        "job/sections/0007.safetensors", "job/segments/0007.mp4", "job/thumbs/0007.webp", "job/original_7",
    ]  # fmt: skip
    assert [folder.picture(name).name for name in ("image", "end_image", "pictures_2")] == [
        "input.png", "end_image.png", "pictures_2.png",
    ]  # fmt: skip
    assert folder.job == "job"


def test_a_job_has_begun_with_its_first_file_of_results(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert (folder.has_begun, folder.checkpoints) == (False, 0)
    folder.sections.mkdir()
    folder.saved_steps.touch()
    assert (folder.has_begun, folder.checkpoints) == (False, 0)
    folder.encodings.touch()
    assert (folder.has_begun, folder.checkpoints) == (True, 1)
    folder.encodings.unlink()
    folder.segments.mkdir()
    folder.latents(1).touch()
    assert (folder.has_begun, folder.checkpoints) == (True, 1)
    folder.latents(1).unlink()
    assert folder.has_begun

"""Tests of the files of a request: their copies in a job's folder, where they count, and what is refused."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from diffusers_helper.conditions import pictures
from diffusers_helper.conditions.picture_file import plain_png
from diffusers_helper.conditions.pictures import (
    load_named,
    picture_warning,
    read_pictures,
    request_content,
    store_files,
    store_request,
    stored_pictures,
    stored_request,
    write_captured,
)
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest


def png(colour: str) -> bytes:
    return plain_png(Image.new("RGB", (64, 64), colour))


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    (tmp_path / "job").mkdir()
    return JobFolder(tmp_path / "job")


def test_a_request_and_its_files_are_those_of_the_last_edit_wherever_the_folder_is(
    folder: JobFolder, tmp_path: Path
) -> None:
    for name in ("film", "first", "second", "song"):
        (tmp_path / name).write_text(name)
    all_files = GenerationRequest(
        image="a.png", end_image="b.png", pictures="1.2s: c.png", video=str(tmp_path / "film"),
        join=f"{tmp_path / 'first'}\n{tmp_path / 'second'}", sound=str(tmp_path / "song"), finish="join:0",
    )  # fmt: skip
    contents = {"image": png("red"), "end_image": png("green"), "pictures_1": png("blue")}
    store_request(all_files, contents, folder, final_folder=folder)
    assert {file.name for file in folder.path.iterdir()} == {
        "request.json", "input.png", "end_image.png", "pictures_1.png", "original", "original_1",
        "original_2", "sound",
    }  # fmt: skip
    assert stored_pictures(folder, contents) == contents
    assert [folder.joined(number).read_text() for number in (1, 2)] == ["first", "second"]
    moved = JobFolder(folder.path.rename(tmp_path / "moved"))
    request = stored_request(request_content(moved), moved)
    assert (request.image, request.end_image) == (str(moved.input), str(moved.path / "end_image.png"))
    assert request.pictures == f"1.2s: {moved.path / 'pictures_1.png'}"
    assert (request.video, request.sound) == (str(moved.original), str(moved.sound))
    assert request.join.splitlines() == [str(moved.joined(1)), str(moved.joined(2))]
    # The files of the edited request are the job's own copies, of which two change their places.
    swapped = replace(
        request, join=f"{moved.joined(2)}\n{moved.joined(1)}", sound="", end_image="", pictures=""
    )
    store_request(swapped, {"image": png("white")}, moved, final_folder=JobFolder(tmp_path / "final"))
    assert [moved.joined(number).read_text() for number in (1, 2)] == ["second", "first"]
    names = {"request.json", "input.png", "original", "original_1", "original_2"}
    assert {file.name for file in moved.path.iterdir()} == names
    assert moved.input.read_bytes() == png("white")
    assert json.loads(moved.request.read_bytes())["image"] == str(tmp_path / "final" / "input.png")
    store_files({**asdict(swapped), "join": str(tmp_path / "song"), "video": ""}, moved)
    assert moved.joined(1).read_text() == "song"
    assert {file.name for file in moved.path.iterdir()} == names - {"original", "original_2"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "request.json cannot be used: it is"), (b"{", "request.json cannot be used: "),
        (b'{"image": "x", "steps": 0}', "request.json cannot be used: `steps` is 0"),
        (b'{"image": "x"}' + b" " * 2**20, "request.json cannot be used: "), (None, "No such file"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_used_is_told(content: bytes | None, words: str, folder: JobFolder) -> None:
    if content is not None:
        folder.request.write_bytes(content)
    with pytest.raises(InputError, match="Put the file back as it was") as caught:
        stored_request(request_content(folder), folder)
    assert words in caught.value.message
    with pytest.raises(FileNotFoundError):  # the outputs folder is out of reach
        request_content(JobFolder(folder.path / "away"))


def test_a_picture_that_is_the_continued_video_is_its_last_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film, other = tmp_path / "film.mp4", tmp_path / "other.png"
    other.write_bytes(png("green"))
    monkeypatch.setattr(pictures, "read_footage", lambda file: SimpleNamespace(last_frame=png("red")))
    request = GenerationRequest(image=str(film), end_image=str(other), video=str(film))
    read = read_pictures(request, {})
    assert (read["image"], read["end_image"]) == (png("red"), png("green"))
    assert read_pictures(request, {"image": b"own"})["image"] == b"own"
    colours = [load_named(request, "image", str(path)).getpixel((0, 0)) for path in (film, other)]
    assert colours == [(255, 0, 0), (0, 128, 0)]


@pytest.mark.parametrize(
    ("model", "mode", "words"),
    [
        ("framepack-i2v", "inverted", ""), ("framepack-i2v", "forward", "the order End first was."),
        ("framepack-f1", "forward", "framepack-i2v was."),
        ("helios-base", "forward", "takes no pictures"),
    ],
)  # fmt: skip
def test_a_model_that_was_not_trained_for_further_pictures_is_said(model: str, mode: str, words: str) -> None:
    warning = picture_warning(mode, find_model(model))
    assert warning.endswith(words) if words.endswith("was.") else words in warning
    assert bool(warning) == bool(words)


def test_captured_pictures_become_files_under_the_names_of_their_settings(folder: JobFolder) -> None:
    arrays = {
        "picture": np.full((8, 8, 3), 9, np.uint8),
        "end_image": np.zeros((8, 8, 3), np.uint8),
        "states": 1,
    }
    files = write_captured(arrays, folder)
    assert files == {"image": str(folder.input), "end_image": str(folder.path / "end_image.png")}
    with Image.open(files["image"]) as written:
        assert written.getpixel((0, 0)) == (9, 9, 9)

"""Tests of exported videos: their frames, times, colours, sound, recipes, sizes and bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import av
import numpy as np
import pytest
from PIL import Image

from diffusers_helper.conditions.film import MAX_SECONDS
from diffusers_helper.conditions.footage import all_frames
from diffusers_helper.errors import InputError
from diffusers_helper.output import gif
from diffusers_helper.output.export import FORMATS, estimated_bytes, exported
from diffusers_helper.provenance.metadata import append_pictures
from diffusers_helper.provenance.recipe import read_recipe
from tests.support.films import BT709, adds_film, adds_sound, facts_of, write_streams

FRAMES, RATE = 31, 30
RECIPE = {"recipe": 1, "settings": {"prompt": "the ball, é"}, "earlier": [], "vae": [], "made_with": {}}
_BLOCKS = np.random.default_rng(1).integers(60, 190, (16, 24, 3), np.uint8)
_TEXTURE = np.asarray(Image.fromarray(_BLOCKS).resize((190, 127), Image.Resampling.BICUBIC))
PICTURES = [np.roll(_TEXTURE, 4 * index, 1) for index in range(FRAMES)]


def adds_recipe(container: Any) -> Callable[[], None]:
    container.metadata["comment"] = json.dumps(RECIPE)
    return lambda: None


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a video of odd height whose picture moves to the right, with sound, recipe and start picture."""
    film = adds_film(PICTURES, form="yuv444p", rate=RATE, **BT709)
    path = write_streams(
        tmp_path_factory.mktemp("video") / "video.mp4", film, adds_sound(FRAMES / RATE, 48000), adds_recipe
    )
    picture = io.BytesIO()
    Image.fromarray(PICTURES[0]).save(picture, "PNG")
    append_pictures(path, {"image": picture.getvalue()})
    return path


def export(video: Path, folder: Path, name: str, **options: Any) -> Path:
    """Export a video twice, and check that both files have the same bytes."""
    target, again = (folder / f"{which}{FORMATS[name].suffix}" for which in (name, "again"))
    for file in (target, again):
        assert all(0 < done <= total for done, total in exported(video, file, name, **options))
    assert target.read_bytes() == again.read_bytes()
    return target


@pytest.mark.parametrize("name", ["h264", "hevc", "av1", "vp9"])
def test_each_codec_keeps_frames_times_colours_sound_and_recipe(
    name: str, video: Path, tmp_path: Path
) -> None:
    file = export(video, tmp_path, name)
    num_frames, rate, seconds, tags = facts_of(file)
    assert (num_frames, rate, tags) == (FRAMES, RATE, BT709)
    assert abs(seconds - Fraction(FRAMES, RATE)) < Fraction(1, 1000)
    with av.open(file) as container:
        assert container.streams.video[0].codec.canonical_name == name
        sound = list(container.decode(audio=0))
        assert abs(float(sound[-1].time + sound[-1].samples / sound[-1].rate) - FRAMES / RATE) < 0.05
    for frame, picture in zip(all_frames(file), PICTURES, strict=True):
        assert np.abs(np.asarray(frame)[:126].astype(int) - picture[:126]).mean() < 4
    recipe = read_recipe(file)
    assert recipe.settings["prompt"] == "the ball, é"
    assert list(recipe.pictures) == ([] if name == "vp9" else ["image"])


@pytest.mark.parametrize("limit", [10**7, 200_000])
def test_a_gif_has_the_length_of_the_video_and_is_as_small_as_a_chat_wants(
    limit: int, video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gif, "MAX_BYTES", limit)
    file = export(video, tmp_path, "gif")
    assert file.stat().st_size <= limit
    with Image.open(file) as shown:
        durations = [shown.seek(index) or shown.info["duration"] for index in range(shown.n_frames)]  # pyright: ignore[reportAttributeAccessIssue]
        assert sum(durations) == pytest.approx(1000 * FRAMES / RATE, abs=50)
        shown.seek(10)
        colours = np.asarray(shown.convert("RGB").resize((190, 127))).astype(int)
        assert np.abs(colours - PICTURES[15]).mean() < (6 if limit > 10**6 else 20)
        assert (shown.width < 190) == (limit < 10**6)


@pytest.mark.parametrize(("size", "smaller"), [((80, 40), (20, 10)), ((40, 80), (10, 20)), ((8, 6), (8, 6))])
def test_the_longer_side_of_a_gif_becomes_smaller(
    size: tuple[int, int], smaller: tuple[int, int], tmp_path: Path
) -> None:
    with av.open(tmp_path / "small.gif", "w") as output:
        packets = [*gif.encoded(output, lambda: iter([Image.new("RGB", size)] * 2), Fraction(10), 20)]
        output.mux(packets)
        stream = output.streams.video[0]
        assert (stream.width, stream.height) == smaller


def test_the_frames_are_stored_as_they_are_shown_with_the_recipe(video: Path, tmp_path: Path) -> None:
    with ZipFile(export(video, tmp_path, "png")) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {ZIP_STORED}
        assert json.loads(archive.read("recipe.json")) == RECIPE
        assert archive.namelist()[1:] == [f"{number:05}.png" for number in range(1, FRAMES + 1)]
        pixels = np.asarray(Image.open(io.BytesIO(archive.read("00011.png")))).astype(int)
    assert np.abs(pixels - PICTURES[10]).mean() < 3
    single = export(video, tmp_path, "frame", at=10 / RATE)
    assert (np.asarray(Image.open(single)) == pixels).all()
    assert read_recipe(single).settings["prompt"] == "the ball, é"
    with pytest.raises(InputError, match="no frame at 9 s"):
        list(exported(video, tmp_path / "late.png", at=9))


def test_a_video_of_three_frames_keeps_their_times(tmp_path: Path) -> None:
    video = write_streams(tmp_path / "short.mp4", adds_film(PICTURES[:3], form="yuv444p"))
    with av.open(export(video, tmp_path, "hevc")) as container:
        times = [Fraction(packet.dts or 0) for packet in container.demux(video=0) if packet.size]
    assert times == sorted(set(times))


def test_a_copy_in_the_same_form_is_the_file_itself(video: Path, tmp_path: Path) -> None:
    assert export(video, tmp_path, "h264").read_bytes() == video.read_bytes()
    assert estimated_bytes(video, "h264") == video.stat().st_size


@pytest.mark.parametrize("name", ["hevc", "av1", "vp9", "gif", "png"])
def test_the_estimate_is_near_the_size(name: str, video: Path, tmp_path: Path) -> None:
    estimate = estimated_bytes(video, name)
    assert estimate
    least, most = (1, 1) if name == "png" else (0.6, 1.6)
    assert least <= estimate / export(video, tmp_path, name).stat().st_size <= most


def test_an_encoder_that_does_not_work_here_is_not_offered(
    video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "hevc_amf", replace(FORMATS["hevc_amf"], encoder="hevc_no_card"))
    assert estimated_bytes(video, "hevc_amf") is None
    with pytest.raises(InputError, match="cannot be written on this machine"):
        list(exported(video, tmp_path / "x.mp4", "hevc_amf"))
    assert not list(tmp_path.iterdir())


def test_an_export_may_be_longer_than_a_source(tmp_path: Path) -> None:
    film = adds_film(PICTURES[:3], form="yuv444p", rate=1, times=[0, 1, 2 * MAX_SECONDS])
    long = write_streams(tmp_path / "long.mkv", film)
    progress = exported(long, tmp_path / "long.mp4")
    assert next(progress)[1] == 2 * MAX_SECONDS + 1
    progress.close()
    assert [path.name for path in tmp_path.iterdir()] == ["long.mkv"]

"""Tests of which film a file has, how long it is, which way up, and in which colours."""

import io
import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest
from PIL import Image

from diffusers_helper.conditions.film import MAX_SECONDS, Film, opened
from diffusers_helper.conditions.footage import all_frames, last_frames, read_footage
from diffusers_helper.errors import PictureError
from tests.support.films import (
    BLUE,
    GREEN,
    RED,
    WHITE,
    adds_cover,
    adds_film,
    adds_sound,
    comb,
    corners,
    flat,
    replaced,
    with_cover_first,
    with_matrix,
    write_film,
    write_streams,
)
from tests.support.layers import ROOT

FIVE = (flat(),) * 150
EVERY_SECOND = {"g": "30", "deadline": "realtime"}
FRAGMENTED = {"movflags": "frag_keyframe+empty_moov"}
Colour = tuple[int, int, int]


def colour_at(picture: Image.Image, x: float, y: float) -> np.ndarray:
    return np.asarray(picture)[int(y * picture.height), int(x * picture.width)].astype(int)


def is_near(pixel: np.ndarray, colour: Colour, most: int = 6) -> bool:
    return bool(np.abs(pixel - colour).max() <= most)


def the_picture(path: Path) -> Image.Image:
    """Return the last frame as a program reads it, after a look at all frames."""
    picture = Image.open(io.BytesIO(read_footage(path).last_frame))
    assert np.array_equal(np.asarray(picture), np.asarray([*all_frames(path)][-1]))
    return picture


def test_a_cover_is_not_the_film(tmp_path: Path) -> None:
    film = with_cover_first(tmp_path / "film.mp4")
    with av.open(film) as container:
        assert [stream.codec_context.name for stream in container.streams.video] == ["mjpeg", "h264"]
    assert is_near(colour_at(the_picture(film), 0.5, 0.5), RED)
    assert len([*all_frames(film)]) == 30


def test_a_song_with_a_cover_has_no_picture(tmp_path: Path) -> None:
    song = write_streams(tmp_path / "song.mp4", adds_cover, adds_sound(1)).rename(tmp_path / "song.m4a")
    with pytest.raises(PictureError, match=r"song.m4a has no picture; expected a video"):
        read_footage(song)


@pytest.mark.parametrize(("first", "second", "colour"), [(0, 1, RED), (1, 0, GREEN), (0, 0, GREEN)])
def test_the_default_track_is_the_film(first: int, second: int, colour: Colour, tmp_path: Path) -> None:
    other = adds_film((flat(GREEN),) * 10, disposition=first)
    film = write_film(tmp_path / "film.mkv", (flat(),) * 10, first=other, disposition=second)
    assert is_near(colour_at(the_picture(film), 0.5, 0.5), colour)


def live(path: Path) -> Path:
    """Write a film as a browser records it, without a length and without an index."""
    return write_film(
        path, FIVE, codec="libvpx", file_options={"live": "1"}, options={"deadline": "realtime"}
    )


def with_long_sound(path: Path) -> Path:
    return write_film(path, FIVE, first=adds_sound(MAX_SECONDS + 100), gop_size=30)


def broadcast(path: Path) -> Path:
    return write_film(path, FIVE, gop_size=30)


def from_the_middle(path: Path) -> Path:
    """Write a broadcast that begins between two key frames, so that its first frames cannot be decoded."""
    write_film(path, (flat(),) * 180, codec="mpeg2video", options={"g": "30"})
    with av.open(path) as container:
        key, next_key, *_ = [
            cast(int, packet.pos) for packet in container.demux(video=0) if packet.is_keyframe
        ]
    content = path.read_bytes()
    path.write_bytes(content[: 188 * 3] + content[key + (next_key - key) // 188 // 2 * 188 :])
    return path


@pytest.mark.parametrize(
    ("write", "ending", "seconds", "count"),
    [
        (live, "webm", 5.0, 150),
        (with_long_sound, "mp4", 5.0, 150),
        (with_long_sound, "mkv", 5.0, 150),
        (partial(write_film, pictures=FIVE, times=range(300, 450)), "mkv", 5.0, 150),
        (partial(write_film, pictures=FIVE, times=range(300, 450)), "ts", 5.0, 150),
        (partial(write_film, pictures=FIVE, file_options=FRAGMENTED), "mp4", 5.0, 150),
        (partial(write_film, pictures=(flat(),) * 5, rate=1), "mp4", 5.0, 150),
        (partial(write_film, pictures=FIVE, rate=1000), "mkv", 0.15, 5),
        (partial(write_film, pictures=FIVE, rate=90000), "mov", 5 / 3000, 1),
        (partial(write_film, pictures=FIVE, codec="mpeg4"), "avi", 5.0, 150),
        (partial(write_film, pictures=FIVE, codec="mpeg2video"), "mpg", 5.0, 150),
    ],
)  # fmt: skip
def test_the_pictures_say_how_long_a_film_is(
    write: Callable[[Path], Path], ending: str, seconds: float, count: int, tmp_path: Path
) -> None:
    film = write(tmp_path / f"film.{ending}")
    assert read_footage(film).seconds == pytest.approx(seconds, abs=0.002)
    assert len([*all_frames(film)]) == count
    assert len(last_frames(film, 9)) == min(9, count)


@pytest.mark.parametrize(("write", "ending"), [(live, "webm"), (with_long_sound, "mkv"), (broadcast, "ts")])
def test_the_end_is_found_without_decoding_what_comes_before(
    write: Callable[[Path], Path], ending: str, tmp_path: Path
) -> None:
    with opened(write(tmp_path / f"film.{ending}")) as film:
        film.seek_to_end(1.5)
        times = [time for time, _ in film.frames()]
    assert times[0] > 3
    assert round(float(times[-1]), 2) == 4.97


def test_the_end_is_found_where_key_frames_are_far_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = write_film(tmp_path / "film.ts", (flat(size=(32, 32)),) * 900, gop_size=300)
    looked = []
    seek = Film.seek_to_end
    monkeypatch.setattr(Film, "seek_to_end", lambda self, ahead: [looked.append(ahead), seek(self, ahead)])
    assert read_footage(film).seconds == 30
    assert len(looked) == 2
    assert len(last_frames(film, 73)) == 73


def test_frames_before_the_first_key_frame_are_left_out(tmp_path: Path) -> None:
    film = from_the_middle(tmp_path / "film.ts")
    assert 140 <= len([*all_frames(film)]) <= 165
    assert 4.6 < read_footage(film).seconds < 5.6
    assert is_near(colour_at(the_picture(film), 0.5, 0.5), RED)


def test_a_film_that_is_too_long_is_refused_by_its_length(tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.mp4", (flat(size=(32, 32)),) * 700, rate=1)
    with pytest.raises(PictureError, match=r"film.mp4 has 700 s; expected at most 600\."):
        read_footage(film)


@pytest.mark.parametrize(("ending", "frames"), [("mp4", 18_001), ("ts", 18_030)])
def test_a_film_may_end_within_the_second_after_the_longest(ending: str, frames: int, tmp_path: Path) -> None:
    film = write_film(tmp_path / f"film.{ending}", (flat(size=(32, 32)),) * 2, times=(0, frames - 1))
    assert read_footage(film).seconds == pytest.approx(frames / 30, abs=0.002)
    with opened(film) as opened_film:
        assert float(opened_film.times()[-1]) == pytest.approx(frames / 30, abs=0.002)


def test_the_pause_in_a_film_is_not_filled_without_end(tmp_path: Path) -> None:
    far = write_film(tmp_path / "far.mkv", (flat(),) * 3, rate=1, times=(0, 1, 1_000_000))
    with pytest.raises(PictureError, match=r"far.mkv has 1000001 s; expected at most 600"):
        next(frame for number, frame in enumerate(all_frames(far)) if number > 30 * MAX_SECONDS)


# Where the white quarter is, and the red one, which is below it in the file.
TURNS = {
    "as it is": ((1, 0, 0, 1), (0.25, 0.25), (0.25, 0.75)),
    "mirrored": ((-1, 0, 0, 1), (0.75, 0.25), (0.75, 0.75)),
    "upside down": ((1, 0, 0, -1), (0.25, 0.75), (0.25, 0.25)),
    "half a turn": ((-1, 0, 0, -1), (0.75, 0.75), (0.75, 0.25)),
    "to the right": ((0, 1, -1, 0), (0.75, 0.25), (0.25, 0.25)),
    "to the left": ((0, -1, 1, 0), (0.25, 0.75), (0.75, 0.75)),
    "mirrored and to the left": ((0, 1, 1, 0), (0.25, 0.25), (0.75, 0.25)),
    "mirrored and to the right": ((0, -1, -1, 0), (0.75, 0.75), (0.25, 0.75)),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNS)
def test_turns_and_mirrors_are_followed(name: str, tmp_path: Path) -> None:
    signs, white, red = TURNS[name]
    film = with_matrix(write_film(tmp_path / "film.mp4", (corners(),) * 5), *signs)
    picture = the_picture(film)
    assert picture.size == ((192, 128) if signs[0] else (128, 192))
    assert is_near(colour_at(picture, *white), WHITE)
    assert is_near(colour_at(picture, *red), RED)
    assert is_near(colour_at(picture, 1 - white[0], 1 - white[1]), BLUE)


@pytest.mark.parametrize(("codec", "colorspace"), [("libx264", 1), ("mpeg2video", 5)])
def test_interlaced_films_show_no_combs(codec: str, colorspace: int, tmp_path: Path) -> None:
    options = {"x264-params": "tff=1", "crf": "4"} if codec == "libx264" else {"qscale": "2"}
    flags = 0x20040000 if codec == "mpeg2video" else 0  # interlaced motion and interlaced DCT
    changes: dict[str, Any] = {"flags": flags} if flags else {}
    film = write_film(
        tmp_path / "film.mkv", [comb(number) for number in range(12)], codec=codec, rate=30,
        options=options, colorspace=colorspace, **changes,
    )  # fmt: skip
    frames = [np.asarray(frame).astype(int) for frame in all_frames(film)]
    assert len(frames) == 12
    for number, pixels in enumerate(frames):
        inside = pixels[36:92]
        assert np.abs(inside[1:-1] - (inside[:-2] + inside[2:]) / 2).max() < 60
        assert np.abs(inside[::2, 16 + 8 * number + 16] - 230).max() < 12, "the square is where it was"
    assert np.array_equal([np.asarray(frame) for frame in last_frames(film, 4)], frames[-4:])


@pytest.mark.parametrize(
    ("size", "changes", "colour"),
    [
        ((1280, 720), {}, "BT.709"),
        ((720, 1280), {}, "BT.709"),
        ((1280, 718), {}, "BT.601"),
        ((640, 480), {}, "BT.601"),
        ((1280, 720), {"colorspace": 1}, "exact"),
        ((1280, 720), {"colorspace": 5}, "exact"),
        ((640, 480), {"colorspace": 1}, "exact"),
        ((1280, 720), {"form": "yuv444p", "colorspace": 1}, "exact"),
        ((192, 128), {"form": "yuv422p10le"}, "exact"),
        ((192, 128), {"form": "yuvj420p"}, "exact"),
        ((192, 128), {"color_range": 2}, "exact"),
        ((192, 128), {"codec": "libvpx-vp9", "color_range": 2}, "exact"),
        ((1280, 720), {"codec": "mjpeg", "form": "yuvj422p"}, "exact"),
        ((192, 128), {"colorspace": 9, "codec": "libx265"}, "exact"),
        ((193, 127), {"form": "yuv444p"}, "exact"),
        ((1280, 720), {"form": "rgb24", "codec": "ffv1"}, "exact"),
    ],
)  # fmt: skip
def test_colours_are_those_that_the_film_says(
    size: tuple[int, int], changes: dict[str, Any], colour: str, tmp_path: Path
) -> None:
    if changes.get("form") == "rgb24":
        changes = changes | {"form": "bgr0"}
    film = write_film(tmp_path / "film.mkv", (flat(size=size),) * 2, **changes)
    # What says nothing was written with BT.601, which is red with a shift as BT.709.
    expected = (212, 45, 26) if colour == "BT.709" else RED
    picture = the_picture(film)
    assert picture.size == size
    assert is_near(colour_at(picture, 0.5, 0.5), expected, 4)


def test_the_wide_colours_of_bt_2020_become_those_of_a_standard_screen(tmp_path: Path) -> None:
    wide = {"codec": "libx265", "colorspace": 9, "color_primaries": 9, "color_trc": 14}
    picture = the_picture(write_film(tmp_path / "film.mp4", (flat((150, 100, 90)),) * 2, **wide))
    linear = (np.array([150, 100, 90]) / 255) ** 2.2 @ np.array(
        [[1.6605, -0.1246, -0.0182], [-0.5876, 1.1329, -0.1006], [-0.0728, -0.0083, 1.1187]]
    )
    assert np.abs(colour_at(picture, 0.5, 0.5) - 255 * linear ** (1 / 2.2)).max() < 5
    grey = the_picture(write_film(tmp_path / "grey.mp4", (flat((128, 128, 128)),) * 2, **wide))
    assert is_near(colour_at(grey, 0.5, 0.5), (128, 128, 128), 2)


@pytest.mark.parametrize(
    ("ending", "codec", "form"),
    [
        ("mov", "qtrle", "argb"),
        ("mov", "png", "rgba"),
        ("mov", "prores_ks", "yuva444p10le"),
        ("webm", "libvpx-vp9", "yuva420p"),
        ("mkv", "ffv1", "yuva420p"),
        ("apng", "apng", "rgba"),
    ],
)
def test_transparent_films_are_on_white(ending: str, codec: str, form: str, tmp_path: Path) -> None:
    picture = flat((*RED, 255)).copy()
    picture[:, 96:] = (*GREEN, 0)
    picture[64:, :64] = (*GREEN, 128)
    options = {"profile": "4444"} if codec == "prores_ks" else None
    film = write_film(tmp_path / f"film.{ending}", (picture,) * 5, codec=codec, form=form, options=options)
    result = the_picture(film)
    assert is_near(colour_at(result, 0.25, 0.25), RED)
    assert is_near(colour_at(result, 0.75, 0.5), WHITE)
    assert is_near(colour_at(result, 0.125, 0.75), (142, 227, 142))


def test_the_unused_fourth_channel_of_uncompressed_avi_is_no_transparency(tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.avi", (flat((*RED, 0)),) * 2, codec="rawvideo", form="bgra")
    assert is_near(colour_at(the_picture(film), 0.5, 0.5), RED)


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts", "avi", "mov"])
def test_pixels_that_are_not_square_are_not_squeezed(ending: str, tmp_path: Path) -> None:
    film = write_film(
        tmp_path / f"film.{ending}", (corners((144, 108)),) * 12,
        codec="mpeg4" if ending == "avi" else "libx264", sample_aspect_ratio=Fraction(4, 3),
    )  # fmt: skip
    picture = the_picture(film)
    assert picture.size == (192, 108)
    assert is_near(colour_at(picture, 0.25, 0.25), WHITE)
    assert is_near(colour_at(picture, 0.75, 0.75), BLUE)


def test_a_size_that_square_pixels_would_have_is_checked(tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.mp4", (flat(),) * 2, sample_aspect_ratio=Fraction(4, 3))
    film.write_bytes(replaced(film.read_bytes(), b"pasp", 0, bytes.fromhex("00010000 00000001")))
    with pytest.raises(
        PictureError, match=r"film.mp4 has 12582912x128 pixels; expected at least 16 pixels each way"
    ):
        read_footage(film)


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        ("libx264", "4000x2400 pixels"),
        ("libx265", "4000x2400 pixels"),
        ("mpeg2video", "frames of a size that cannot be read"),
    ],
)
def test_the_size_is_checked_at_each_frame(codec: str, size: str, tmp_path: Path) -> None:
    small = write_film(tmp_path / "small.ts", codec=codec)
    large = write_film(tmp_path / "large.ts", (flat(size=(4000, 2400)),) * 2, codec=codec)
    film = tmp_path / "film.ts"
    film.write_bytes(small.read_bytes() + large.read_bytes())
    for read in (read_footage, lambda path: [*all_frames(path)]):
        with pytest.raises(PictureError, match=f"film.ts has {size}.*; expected at least 16 pixels each way"):
            read(film)


def test_a_size_may_change_within_the_limit(tmp_path: Path) -> None:
    small, large = (
        write_film(tmp_path / "small.ts"),
        write_film(tmp_path / "large.ts", (flat(size=(384, 96)),) * 9),
    )
    film = tmp_path / "film.ts"
    film.write_bytes(small.read_bytes() + large.read_bytes())
    assert [*dict.fromkeys(frame.size for frame in all_frames(film))] == [(192, 128), (384, 96)]


def test_names_in_other_encodings_do_not_hinder(tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.avi", (flat(),) * 5, codec="mpeg4")
    content = film.read_bytes()
    assert content.count(b"Lavf") == 1
    film.write_bytes(content.replace(b"Lavf", b"Caf\xe9"))
    assert read_footage(film).seconds == pytest.approx(1 / 6)


def test_every_file_of_a_stranger_is_opened_within_limits() -> None:
    folders = ("app", "cache", "diffusers_helper", "rocm_nodes")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    reads = re.compile(r'av\.open\((?!\s*[\w.()]+, "w")')
    readers = [file for file in files if reads.search(file.read_text(encoding="utf-8"))]
    assert [str(file.relative_to(ROOT)) for file in readers] == ["diffusers_helper/conditions/film.py"]


def test_a_film_goes_on_after_a_packet_that_is_damaged(tmp_path: Path) -> None:
    file = write_film(tmp_path / "film.mov", [flat()] * 12, codec="png", form="rgb24")
    content = bytearray(file.read_bytes())
    with av.open(file) as container:
        packet = [*container.demux(video=0)][5]
    assert packet.pos is not None
    content[packet.pos : packet.pos + 8] = bytes(8)
    file.write_bytes(content)
    with opened(file) as film:
        times = [time for time, _ in film.frames()]
    assert times == [Fraction(number, 30) for number in range(12) if number != 5]

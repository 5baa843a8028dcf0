"""Tests of the videos that are finished: their facts, their frames by index, and their sound in step."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from diffusers_helper.conditions.footage import all_frames
from diffusers_helper.conditions.sources import rate_and_frames, read_source, source_reader
from diffusers_helper.errors import InputError, PictureError
from diffusers_helper.finish.finishing import Finishing
from diffusers_helper.job.sound import RATE, read_sound, soundtrack, write_sound
from tests.support.clips import scene
from tests.support.films import Adds, adds_film, flat, with_matrix, write_film, write_streams

CLIP = scene(90)
GOPS = {"preset": "ultrafast", "crf": "4", "g": "12", "bf": "3"}


def clicks(seconds: float, times: list[float]) -> Adds:
    """Return what adds silence with a short loud tone at each time."""

    def add(container: Any) -> Callable[[], None]:
        stream: Any = container.add_stream("pcm_s16le", rate=RATE, layout="mono")

        def write() -> None:
            samples = np.zeros((1, int(seconds * RATE)), np.int16)
            for time in times:
                begin = int(time * RATE)
                samples[0, begin : begin + 480] = 20_000
            frame = av.AudioFrame.from_ndarray(samples, "s16", "mono")
            frame.sample_rate, frame.pts = RATE, 0
            container.mux([*stream.encode(frame), *stream.encode(None)])

        return write

    return add


def onsets(samples: np.ndarray) -> list[float]:
    """Return the times at which something loud begins, in milliseconds."""
    loud = np.flatnonzero(np.abs(samples.astype(int)).max(-1) > 5000)
    return [
        round(index / RATE * 1000)
        for index, before in zip(loud, [-RATE, *loud], strict=False)
        if index - before > RATE / 50
    ]


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.avi"])
def test_frames_by_index_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    film = write_film(tmp_path / name, [*CLIP], options=GOPS)
    facts = read_source(film)
    assert str(facts) == "source:96x64*90@30"
    whole = np.stack([*map(np.asarray, all_frames(film))])
    read = source_reader([film], Finishing.of(str(facts)))
    for indices in ([0], [89], [50, 51, 60], [*range(30, 45)], [11, 12]):
        assert np.array_equal(np.stack([read(0, indices)[index] for index in indices]), whole[indices])
    # The frames of another segment do not depend on what was read before; what is missing at the end stays.
    assert np.array_equal(read(0, [95])[95], whole[89])


def test_others_get_the_size_and_the_rate_of_the_first(tmp_path: Path) -> None:
    first = write_film(tmp_path / "first.mp4", [*CLIP[:30]])
    other = write_film(tmp_path / "other.mp4", [flat((8 * n, 90, 90), (64, 64)) for n in range(24)], rate=24)
    facts = [read_source(path) for path in (first, other)]
    finishing = Finishing.of(",".join(map(str, facts)))
    assert (finishing.result.frames, finishing.result.rate) == (60, 30)
    frames = source_reader([first, other], finishing)(1, range(30))
    assert {frame.shape for frame in frames.values()} == {(64, 96, 3)}
    reds = [int(frames[index][32, 48, 0]) for index in range(30)]
    assert np.abs(np.array(reds) - [8 * int((index + 0.5) * 24 / 30) for index in range(30)]).max() < 6


@pytest.mark.parametrize(
    ("times", "rate", "frames"),
    [
        ([*range(30)], "30", 30),
        ([n + (n > 10) + 3 * (n > 20) for n in range(30)], "30", 34),  # a phone that skips
        ([5 * n for n in range(6)], "6", 6),
        ([0, 1, 2, 300], "30", 301),
        ([0], "30", 1),
    ],
)  # fmt: skip
def test_the_rate_follows_from_the_times(times: list[int], rate: str, frames: int, tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.mkv", [*CLIP[: len(times)]], times=times)
    shape = read_source(film)
    assert (str(shape.rate), shape.frames) == (rate, frames)


def test_a_turned_film_has_the_size_that_a_player_shows(tmp_path: Path) -> None:
    film = with_matrix(write_film(tmp_path / "film.mp4"), 0, 1, -1, 0)
    assert str(read_source(film)) == "source:128x192*30@30"


PQ = {"color_trc": 16, "color_primaries": 9, "colorspace": 9}


@pytest.mark.parametrize(
    ("size", "changes", "level"),
    [
        ((3840, 2160), {}, 148),
        ((96, 64), {"form": "yuv420p10le"}, 148),
        ((96, 64), {"form": "yuv420p10le", **PQ}, 224),
    ],
    ids=["4k", "10 bits", "HDR"],
)
def test_large_and_deep_films_are_read_as_a_standard_screen_shows_them(
    size: tuple[int, int], changes: dict[str, Any], level: int, tmp_path: Path
) -> None:
    film = write_film(tmp_path / "film.mp4", [flat((148,) * 3, size), flat((60,) * 3, size)], **changes)
    facts = read_source(film)
    assert str(facts) == f"source:{size[0]}x{size[1]}*2@30"
    frame = source_reader([film], Finishing.of(str(facts)))(0, [0])[0]
    assert frame.shape == (size[1], size[0], 3)
    assert np.abs(frame.astype(int) - level).max() <= 4
    largest = max(map(len, Finishing.of(f"{facts},speed:0.1").segments))
    assert largest <= max(8, 2**28 // frame.nbytes)


def test_unusable_films_are_refused_in_a_sentence(tmp_path: Path) -> None:
    long = write_film(tmp_path / "long.mkv", [*CLIP[:2]], rate=1, times=[0, 3 * 3600])
    playlist = tmp_path / "list.mp4"
    playlist.write_text(f"ffconcat version 1.0\nfile '{long}'\n")
    song = write_streams(tmp_path / "song.mkv", clicks(1, []))
    problems = {long: "has 10801 s; expected at most 600", playlist: "is no MP4, MOV", song: "has no picture"}
    for path, problem in problems.items():
        with pytest.raises(PictureError, match=problem):
            read_source(path)


def test_the_sound_follows_trims_joins_and_fades(tmp_path: Path) -> None:
    film = write_streams(tmp_path / "a.mkv", adds_film([*CLIP]), clicks(3, [0.5, 2.0, 2.9]))
    silent = write_film(tmp_path / "b.mp4", [*CLIP[:30]])
    facts = [read_source(path) for path in (film, silent, film)]
    assert [fact.has_sound for fact in facts] == [True, False, True]
    finishing = Finishing.of(",".join(map(str, facts)) + ",trim:1.5-,join:15")
    samples = soundtrack(finishing, [film, silent, film], None)
    assert samples is not None
    assert len(samples) / RATE == finishing.result.seconds == 1.5 + 1 + 3 - 2 * 0.5
    # The last click is faded out with its picture, and the third source begins at 1.5 s.
    assert onsets(samples) == [500, 2000, 3500, 4400]
    write_sound(samples, tmp_path / "sound.mp4")
    decoded = read_sound(tmp_path / "sound.mp4", Fraction(0), Fraction(9, 2))
    assert np.abs(np.array(onsets(decoded)) - onsets(samples)).max() <= 2


@pytest.mark.parametrize(
    ("words", "has_sound"), [("reverse", False), ("speed:2", False), ("mute", False), ("enlarge:2", True)]
)
def test_sound_that_cannot_follow_is_left_out(words: str, has_sound: bool, tmp_path: Path) -> None:
    film = write_streams(tmp_path / "a.mkv", adds_film([*CLIP[:30]]), clicks(1, [0.5]))
    finishing = Finishing.of(f"{read_source(film)},{words}")
    assert (soundtrack(finishing, [film], None) is not None) == has_sound
    # A chosen sound is cut, or padded with silence.
    chosen = soundtrack(finishing, [film], write_streams(tmp_path / "song.wav", clicks(0.8, [0.1])))
    assert chosen is not None
    assert (len(chosen) / RATE, onsets(chosen)) == (finishing.result.seconds, [100])
    with pytest.raises(InputError, match=re.escape("The sound of b.mp4 cannot be used (it has none)")):
        soundtrack(finishing, [film], write_film(tmp_path / "b.mp4"))


@pytest.mark.parametrize("silent", [None, 0, 1])
def test_the_sounds_of_joined_videos_pass_into_each_other(
    silent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = ("source:96x64*30@30+sound", "source:96x64*20@30+sound", "source:96x64*10@30+sound")
    parts = [text.removesuffix("+sound") if number == silent else text for number, text in enumerate(sources)]
    finishing = Finishing.of(",".join([*parts, "trim:0.2-", "join:3"]))
    read = list[tuple[str, Fraction, Fraction]]()

    def sound(path: Path, begin: Fraction, seconds: Fraction) -> np.ndarray:
        read.append((path.name, begin, seconds))
        return np.full((round(seconds * 48_000), 2), 1000, np.int16)

    monkeypatch.setattr("diffusers_helper.job.sound.read_sound", sound)
    track = soundtrack(finishing, [Path("a"), Path("b"), Path("c")], None)
    assert track is not None
    lengths = {"a": (6, 24), "b": (0, 20), "c": (0, 10)}
    heard = [name for number, name in enumerate(lengths) if number != silent]
    assert read == [(name, *(Fraction(frames, 30) for frames in lengths[name])) for name in heard]
    assert len(track) == 48 * 1600
    level = track[800::1600, 0].tolist()  # in the middle of each frame; 21 to 24 and 38 to 41 are the fades
    fade_in, fade_out = ([round(1000 * share / 6) for share in shares] for shares in ((1, 3, 5), (5, 3, 1)))
    whole = 3 * [1000]
    first = 21 * [0 if silent == 0 else 1000] + (
        fade_in if silent == 0 else fade_out if silent == 1 else whole
    )
    second = 14 * [0 if silent == 1 else 1000] + (fade_in if silent == 1 else whole)
    assert level == pytest.approx([*first, *second, *7 * [1000]], abs=1)


@pytest.mark.parametrize(
    ("times", "stated", "expected"),
    [
        ([0, 2, 4, 6, 8], 25, (Fraction(50), 4)), ([0, 2, 4, 6, 8], None, (Fraction(50), 4)),
        ([0, 2], None, (Fraction(50), 1)),
        ([0, 1, 2, 3, 4], None, (Fraction(100), 4)), ([0, 300, 600], None, (Fraction(24), 144)),
        ([5, 7, 9, 21, 23], None, (Fraction(50), 9)),
    ],
)  # fmt: skip
def test_a_rate_is_the_stated_one_where_the_times_agree(
    times: list[int], stated: int | None, expected: tuple[Fraction, int]
) -> None:
    assert rate_and_frames([Fraction(time, 100) for time in times], stated and Fraction(stated)) == expected

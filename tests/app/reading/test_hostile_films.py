"""Tests of hostile videos, each of which a process with limits reads, or refuses in a sentence."""

import io
from pathlib import Path

import pytest
from PIL import Image

from app.reading.process import Limits, ReadingProcess
from diffusers_helper.conditions.film import MAX_PIXELS, MAX_SECONDS
from diffusers_helper.conditions.footage import Footage, read_footage
from diffusers_helper.errors import PictureError
from tests.support.films import write_film
from tests.support.hostile_films import hostile_films

_LIMITS = Limits(memory=2**29, seconds=30, wall_seconds=300.0)


def answer(process: ReadingProcess, film: Path) -> Footage | PictureError:
    try:
        return process.read(read_footage, film)
    except PictureError as error:
        return error


@pytest.mark.slow
def test_hostile_films_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    process = ReadingProcess(_LIMITS)
    count = 0
    for film in hostile_films(tmp_path):
        count += 1
        facts = answer(process, film)
        if isinstance(facts, PictureError):
            assert facts.message.startswith(f"The video {film.name} "), facts
            assert facts.message.endswith(".")
            assert len(facts.message) < 200
            assert str(tmp_path) not in str(facts)
        else:
            with Image.open(io.BytesIO(facts.last_frame)) as picture:
                assert picture.width * picture.height <= MAX_PIXELS, film.name
            assert 0 < facts.seconds <= MAX_SECONDS + 1, film.name
        film.unlink()
    assert count > 150
    # The process is as good as new.
    assert process.read(read_footage, write_film(tmp_path / "film.mp4")).seconds == 1
    process.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"),
        ("list.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"),
        ("list.ts", "ffconcat version 1.0\nfile '{}'\n"),
    ],
)
def test_a_video_names_no_other_file(name: str, text: str, tmp_path: Path) -> None:
    film = write_film(tmp_path / "film.ts")
    read_footage(film)
    playlist = tmp_path / name
    playlist.write_text(text.format(film.name))
    with pytest.raises(PictureError, match=f"The video {name} (is no MP4|cannot be read)"):
        read_footage(playlist)

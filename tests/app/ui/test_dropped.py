"""Tests of the endpoints of dropped files, without a browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio.utils import get_upload_folder

from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form.endpoints import FormCalls
from app.ui.pictures import Upload
from diffusers_helper.errors import InputError
from tests.support.films import adds_cover, adds_sound, write_film, write_streams
from tests.support.pages import write_photo
from tests.support.shared import Sharing


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobService]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    sharing = Sharing(tmp_path)
    yield sharing.open()
    sharing.close()


@pytest.fixture
def calls(service: JobService) -> FormCalls:
    return FormCalls(service, Catalogue())


def upload(name: str, content: bytes = b"") -> Upload:
    """Put a file, by default a photo, among the uploads, and return its description."""
    path = Path(get_upload_folder()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if content:
        path.write_bytes(content)
    else:
        write_photo(path)
    return Upload(path=str(path))


def test_a_dropped_table_is_read_as_its_spreadsheet_program_wrote_it(
    service: JobService, calls: FormCalls
) -> None:
    table = "sep=;\r\nImage;PROMPT;seconds;;\r\nown.png;the caméra, left;1,5;;\r\n"
    file = upload("w.csv", table.encode("utf-16"))
    (job,) = calls.batch_add(file, {"own.png": upload("own.png")}, "{}")
    request = service.job(job).request
    assert (request.prompt, request.seconds) == ("the caméra, left", 1.5)
    with pytest.raises(InputError, match="is a workbook; expected a text file"):
        calls.batch_add(upload("w.xlsx", b"PK\x03\x04"), {}, "{}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"image": "/etc/passwd"}', "was not dropped with the file"),
        ('{"image": "x.png", "model": "/etc"}', "expected one of demo"),
        ("{}", "no picture"),
        ('{"image": "x.png", "lora": "/etc/passwd:1"}', "lora"),
        ("[1]", "expected a JSON object"),
    ],
)
def test_a_line_names_no_file_of_this_machine(
    service: JobService, calls: FormCalls, line: str, words: str
) -> None:
    file = upload("w.jsonl", f'{{"image": "x.png"}}\n{line}\n'.encode())
    with pytest.raises(InputError, match=r"Line 2 of w\.jsonl cannot be used") as refused:
        calls.batch_add(file, {"x.png": upload("x.png")}, "{}")
    assert words in str(refused.value)
    assert service.jobs() == []


FILMS = {
    "00001.MTS": "libx264", "clip.m2ts": "libx264", "clip.TS": "mpeg2video", "clip.3gp": "libx264",
    "CLIP.3GP": "mpeg4", "clip.mkv": "libx265", "clip.AVI": "mpeg4", "IMG_0001.MOV": "libx264",
    "clip.WebM": "libvpx-vp9", "clip.m4v": "libx264", "clip.MPG": "mpeg2video", "clip.wmv": "wmv2",
    "clip.vob": "mpeg2video",
}  # fmt: skip


@pytest.mark.parametrize("name", FILMS)
def test_a_video_with_any_usual_ending_is_continued(name: str, calls: FormCalls, tmp_path: Path) -> None:
    film = write_film(tmp_path / name.lower(), codec=FILMS[name])
    file = upload(name, film.read_bytes())
    for called, answer in ((name, calls.file_read(file, name)), ("the file", calls.file_read(file))):
        assert json.loads(answer["text"])["notices"] == [f"The new video continues {called} (1.0 s)."]
        assert answer["pictures"]["image"].endswith("last-frame.png")


def test_a_song_is_refused_for_what_it_lacks(calls: FormCalls, tmp_path: Path) -> None:
    song = write_streams(tmp_path / "song.mp4", adds_cover, adds_sound(1))
    with pytest.raises(InputError, match=r"The video song\.m4a has no picture; expected a video"):
        calls.file_read(upload("song.m4a", song.read_bytes()), "song.m4a")

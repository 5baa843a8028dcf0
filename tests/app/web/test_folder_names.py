"""Tests of the names that stand for folders in messages, in both directions."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from app.web.folder_names import FolderNames

UPLOADS, OUTPUTS = Path("/srv/anna/Vidéos & more/cache"), Path("/srv/anna/Vidéos & more")
NAMES = FolderNames(UPLOADS, OUTPUTS)


@pytest.mark.parametrize("write", [str, quote, lambda path: json.dumps(path)[1:-1]])
def test_no_folder_is_named_however_it_is_written(write: Callable[[str], str]) -> None:
    text = f'{{"path":"{write(f"{UPLOADS}/ab/x.png")}","url":"http://h/file={write(f"{UPLOADS}/ab/x.png")}"}}'
    assert (
        NAMES.outward(text.encode()) == b'{"path":"uploads/ab/x.png","url":"http://h/file=uploads/ab/x.png"}'
    )
    assert NAMES.outward(write(f"{OUTPUTS}/j/video.mp4").encode()) == b"outputs/j/video.mp4"


def test_addresses_and_other_folders_stay() -> None:
    names = FolderNames(Path("/srv/u"), Path("/app"))
    for text in (b"https://example.org/app/assets/x.js", b"/apple/x", b"/srv/up/x", b"/srv/app/x"):
        assert names.outward(text) == text


def test_uploads_come_in_by_their_name_where_a_file_is_described_and_nowhere_else() -> None:
    file = {"path": "uploads/ab/x.png", "orig_name": "uploads/ab/x.png", "meta": {"_type": "gradio.FileData"}}
    message = {"data": ["uploads/ab/x.png", [file], {"path": ["uploads/x"]}, 2**60, "é"], "path": 7}
    found = NAMES.inward(message)
    assert found == {**message, "data": [
        "uploads/ab/x.png", [{**file, "path": f"{UPLOADS}/ab/x.png"}], {"path": ["uploads/x"]}, 2**60, "é",
    ]}  # fmt: skip


@pytest.mark.parametrize(
    "path",
    ["http://192.0.2.1/x.png", "https://example.org/x.png", "/etc/passwd", "file:///etc/passwd", "x", ""],
)
def test_what_is_no_upload_is_no_description_of_a_file(path: str) -> None:
    file = {"path": path, "url": path, "meta": {"_type": "gradio.FileData"}}
    found = NAMES.inward({"data": [[file]], "fn_index": 1})
    assert found == {"data": [[{"path": path, "url": path}]], "fn_index": 1}

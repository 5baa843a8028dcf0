"""Tests of ZIP files that are made while they are sent."""

import io
import os
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

import pytest

from diffusers_helper.errors import InputError
from diffusers_helper.provenance.zips import Entry, file_entry, stored_zip


def test_a_zip_has_the_files_and_the_size_that_was_said(tmp_path: Path) -> None:
    sizes = {"a.mp4": 0, "longtake-b.png": 3, "c.mp4": 2_500_000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(os.urandom(size))
    size, parts = stored_zip([file_entry(f"x-{name}", tmp_path / name) for name in sizes])
    content = b"".join(parts)
    assert len(content) == size
    with ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {ZIP_STORED}
        assert {name: archive.read(f"x-{name}") for name in sizes} == {
            name: (tmp_path / name).read_bytes() for name in sizes
        }


@pytest.mark.parametrize(("size", "words"), [(None, "None of these"), (2**31, "expected at most 2 GB")])
def test_a_zip_without_files_or_with_too_much_is_refused(
    tmp_path: Path, size: int | None, words: str
) -> None:
    files: list[Entry] = []
    if size is not None:
        with (tmp_path / "a").open("wb") as file:
            file.truncate(size)
        files = [file_entry("a", tmp_path / "a")]
    with pytest.raises(InputError, match=words):
        stored_zip(files)

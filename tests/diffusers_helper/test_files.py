"""Tests of how files of unknown content are read."""

import os
from pathlib import Path

import pytest

from diffusers_helper.files import read_file


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link", "too large"])
def test_what_cannot_be_read_is_refused_at_once_and_left_closed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "states.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nothing")
    else:
        path.write_bytes(b"longer")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(OSError, match=r"regular file|No such file|larger|Is a directory"):
            read_file(path, 3)
    assert len(os.listdir("/proc/self/fd")) == before

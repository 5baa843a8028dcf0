"""Tests of the growing video after a death, a full disk and lost files: nothing is lost or incomplete."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diffusers_helper.families.packing import MODES, Mode
from tests.support.clips import flat, names, parts_of, psnr, read, scene, visible, write, writer

both_modes = pytest.mark.parametrize("mode", MODES)
FRAMES = 36 * 4 + 1


@pytest.fixture(scope="module")
def clip() -> np.ndarray:
    return scene(FRAMES)


@both_modes
def test_a_new_writer_goes_on_where_the_last_one_ended(tmp_path: Path, clip: np.ndarray, mode: Mode) -> None:
    expected = write(tmp_path / "straight", clip, mode).read_bytes()
    for number, (final, pending) in enumerate(parts_of(clip, mode)):
        before = writer(tmp_path / "parts", mode)
        assert before.sections == number
        assert (before.latest is None) == (number == 0)
        before.add_section(final, pending)
        again = writer(tmp_path / "parts", mode)
        assert (again.latest, again.frames, again.sections) == (before.latest, before.frames, number + 1)
    assert writer(tmp_path / "parts", mode).finish().read_bytes() == expected


_DIE = """
import os, sys
from pathlib import Path
from tests.support.clips import parts_of, scene, writer
folder, mode, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rename = Path.replace
def replace(self, target):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return rename(self, target)
Path.replace = replace
video = writer(folder, mode)
for final, pending in parts_of(scene(int(sys.argv[4])), mode):
    video.add_section(final, pending)
"""


@pytest.mark.slow
@both_modes
@pytest.mark.parametrize("renames", [4, 5, 6, 7])
def test_death_just_before_any_rename_costs_nothing_that_was_shown(
    tmp_path: Path, clip: np.ndarray, mode: Mode, renames: int
) -> None:
    # A section renames four files (segment, provisional segment, version, sums), so this is in section 2.
    arguments = [sys.executable, "-c", _DIE, str(tmp_path / "dead"), mode, str(renames), str(FRAMES)]
    assert subprocess.run(arguments, cwd=Path(__file__).parents[3]).returncode == 9
    video = writer(tmp_path / "dead", mode)
    assert video.sections == 1
    assert video.latest is not None
    assert video.latest == tmp_path / "dead" / "video-0001.mp4"
    assert video.warning == ""
    assert psnr(read(video.latest), visible(clip, video.frames, mode)).min() > 30
    for final, pending in parts_of(clip, mode)[video.sections :]:
        video.add_section(final, pending)
    straight = write(tmp_path / "straight", clip, mode)
    assert video.finish().read_bytes() == straight.read_bytes()
    assert names(tmp_path / "dead") == names(tmp_path / "straight")


def test_a_full_disk_leaves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = writer(tmp_path, width=32, height=32)
    first = video.add_section(flat([40] * 4), flat([60] * 4))
    before, data = names(tmp_path), first.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            video.add_section(flat([80] * 4))
    assert (names(tmp_path), first.read_bytes()) == (before, data)
    assert (video.latest, video.frames, video.sections) == (first, 8, 1)
    assert np.allclose(read(video.add_section(flat([80] * 4))).mean((1, 2, 3)), [40] * 4 + [80] * 4, atol=3)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _remove(file: Path) -> None:
    file.unlink()


@pytest.mark.slow
@both_modes
@pytest.mark.parametrize(
    ("name", "harm", "left"),
    [
        ("segments/0002.mp4", _cut, 1),
        ("segments/0003.mp4", _empty, 2),
        ("segments/0004.mp4", _flip, 3),
        ("segments/0004.mp4", _remove, 3),
        ("video-0004.mp4", _cut, 3),
        ("video-0004.mp4", _flip, 3),
    ],
)
def test_a_damaged_file_is_noticed_and_made_again(
    tmp_path: Path, clip: np.ndarray, mode: Mode, harm: Callable[[Path], None], name: str, left: int
) -> None:
    straight = write(tmp_path / "straight", clip, mode)
    folder = tmp_path / "harmed"
    write(folder, clip, mode)
    harm(folder / name)
    video = writer(folder, mode)
    assert video.sections == left
    assert "damaged" in video.warning
    if name == "video-0004.mp4":
        assert video.latest == folder / "video-0003.mp4"
    for final, pending in parts_of(clip, mode)[left:]:
        video.add_section(final, pending)
    assert video.finish().read_bytes() == straight.read_bytes()
    assert names(folder) == names(tmp_path / "straight")
    for file in sorted(names(folder)):
        assert (folder / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()
    assert (writer(folder, mode).sections, writer(folder, mode).warning) == (4, "")


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{", b'{"0001.mp4": 5}'])
def test_without_the_sums_everything_is_made_again(tmp_path: Path, content: bytes | None) -> None:
    video = writer(tmp_path, width=32, height=32)
    for level in (40, 80):
        latest = video.add_section(flat([level] * 4))
    before, sums = latest.read_bytes(), tmp_path / "segments" / "sums.json"
    if content is None:
        sums.unlink()
    else:
        sums.write_bytes(content)
    video = writer(tmp_path, width=32, height=32)
    assert (video.sections, video.latest, video.frames) == (0, None, 0)
    assert "decoded again" in video.warning
    for level in (40, 80):
        latest = video.add_section(flat([level] * 4))
    assert latest.read_bytes() == before


def test_a_version_that_was_removed_costs_only_the_last_section(tmp_path: Path) -> None:
    video = writer(tmp_path, width=32, height=32)
    for level in (40, 80, 120):
        video.add_section(flat([level] * 4))
    for version in tmp_path.glob("video-*.mp4"):
        version.unlink()
    video = writer(tmp_path, width=32, height=32)
    assert (video.sections, video.latest, video.frames) == (2, None, 0)
    video.add_section(flat([120] * 4))
    assert np.allclose(read(video.finish()).mean((1, 2, 3)), [40] * 4 + [80] * 4 + [120] * 4, atol=3)


def test_a_folder_of_another_size_is_refused_and_kept(tmp_path: Path) -> None:
    first = writer(tmp_path, width=32, height=32).add_section(flat([40] * 4))
    with pytest.raises(ValueError, match="other settings"):
        writer(tmp_path, width=64, height=64).add_section(flat([40] * 4, 64))
    assert len(read(first)) == 4

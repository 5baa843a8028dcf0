"""Tests of the growing video: the contents of the file after each section, in both orders."""

import errno
import os
import re
import struct
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusers_helper.families.packing import MODES, Mode, plan_sections
from tests.support.clips import (
    FPS,
    boxes,
    cut,
    flat,
    names,
    parts_of,
    psnr,
    read,
    read_luma,
    scene,
    times,
    visible,
    write,
    writer,
)

both_modes = pytest.mark.parametrize("mode", MODES)
SECTIONS = 4
FRAMES = 36 * SECTIONS + 1


@pytest.fixture(scope="module")
def clip() -> np.ndarray:
    return scene(FRAMES)


@pytest.mark.slow
@both_modes
def test_each_version_shows_the_clip_so_far(tmp_path: Path, clip: np.ndarray, mode: Mode) -> None:
    video = writer(tmp_path, mode)
    assert (video.latest, video.frames, video.sections) == (None, 0, 0)
    plan = plan_sections(1.2 * SECTIONS, mode=mode)
    for section, (final, pending) in zip(plan, cut(clip, plan), strict=True):
        version = video.add_section(final, pending)
        assert (video.latest, video.frames, video.sections) == (version, section.total_frames, section.number)
        expected = visible(clip, section.total_frames, mode)
        shown = read(version)
        assert shown.shape == expected.shape
        # Each frame, provisional ones included, is closest to its own original and far from its neighbours.
        assert psnr(shown, expected).min() > 30
    assert video.frames == FRAMES


@both_modes
def test_time_stamps_count_frames_without_gap_from_zero(tmp_path: Path, clip: np.ndarray, mode: Mode) -> None:
    path = write(tmp_path, clip, mode)
    decoding, showing = times(path)
    assert showing == list(range(FRAMES))
    assert decoding == [k - 2 for k in range(FRAMES)]
    with av.open(path) as container:
        stream = container.streams.video[0]
        assert (stream.frames, stream.start_time, stream.average_rate) == (FRAMES, 0, FPS)
        assert stream.duration * stream.time_base == Fraction(FRAMES, 30)
        assert container.duration == round(FRAMES * 1e6 / 30)
    edits = [payload for name, payload in boxes(path.read_bytes()) if name.endswith("/elst")]
    # The one edit begins at the first frame's time, which reordering delays by two frames, at full speed.
    (version_flags, count, duration, start, rate) = struct.unpack(">IIIII", edits[0])
    assert (len(edits), version_flags, count, rate) == (1, 0, 1, 1 << 16)
    assert duration == FRAMES * 1000
    assert start * 30 == 2 * 15360


@both_modes
def test_no_seam_and_the_pixels_of_a_one_shot_encode(tmp_path: Path, clip: np.ndarray, mode: Mode) -> None:
    grown = write(tmp_path / "grown", clip, mode)
    one_shot = writer(tmp_path / "one").add_section(clip)
    assert psnr(read(grown), read(one_shot)).min() > 35
    # The rest compares luma alone: the loss from halved chroma depends on the picture, not on the encoder.
    source = clip.astype(np.float64) @ [0.2126, 0.7152, 0.0722] * 219 / 255 + 16
    shown, reference = psnr(read_luma(grown), source), psnr(read_luma(one_shot), source)
    assert abs(shown.mean() - reference.mean()) < 0.3
    joins = [36 * k + side for k in range(1, SECTIONS) for side in (-1, 0, 1, 2)]
    assert shown[joins].min() > shown.mean() - 1
    assert (shown[joins] - reference[joins]).min() > -1


@both_modes
def test_every_frame_can_be_sought(tmp_path: Path, clip: np.ndarray, mode: Mode) -> None:
    path = write(tmp_path, clip, mode)
    with av.open(path) as container:
        stream = container.streams.video[0]
        keys = [
            packet.pts * packet.time_base * FPS for packet in container.demux(stream) if packet.is_keyframe
        ]
        lengths = [len(part[0]) for part in parts_of(clip, mode) if part[0] is not None and len(part[0])]
        joins = np.cumsum([0, *(lengths if mode == "forward" else lengths[::-1])])[:-1]
        assert set(joins) <= set(keys)
        for wanted in (FRAMES - 1, 0, 36, 35, 72, 1):
            target = round(wanted / FPS / stream.time_base)
            container.seek(target, stream=stream)
            frame = next(frame for frame in container.decode(stream) if frame.pts >= target)
            assert frame.pts == target
            assert psnr(frame.to_ndarray(format="rgb24")[None], clip[wanted][None])[0] > 30


@both_modes
def test_provisional_frames_are_replaced(tmp_path: Path, mode: Mode) -> None:
    video = writer(tmp_path, mode, width=32, height=32)
    ordered = (lambda a, b: [*a, *b]) if mode == "forward" else (lambda a, b: [*b, *a])
    first = video.add_section(flat([40] * 5), flat([200] * 3))
    second = video.add_section(flat([90] * 3))
    assert np.allclose(read(first).mean((1, 2, 3)), ordered([40] * 5, [200] * 3), atol=3)
    assert np.allclose(read(second).mean((1, 2, 3)), ordered([40] * 5, [90] * 3), atol=3)
    assert names(tmp_path / "segments") == {"0001.mp4", "0002.mp4", "sums.json"}


def test_a_version_lives_until_the_next_but_one(tmp_path: Path) -> None:
    video = writer(tmp_path, width=32, height=32)
    kept = []
    for number in range(5):
        video.add_section(flat([50 * number] * 4))
        kept.append({name for name in names(tmp_path) if name.startswith("video")})
    assert kept[0] == {"video-0001.mp4"}
    assert kept[1:] == [{f"video-{k:04}.mp4", f"video-{k + 1:04}.mp4"} for k in range(1, 5)]


def test_a_player_in_the_middle_of_a_version_reads_it_to_its_end(tmp_path: Path, clip: np.ndarray) -> None:
    video = writer(tmp_path)
    with av.open(video.add_section(clip[:36])) as container:
        decoding = container.decode(video=0)
        shown = [next(decoding)]
        for k in (1, 2, 3):
            video.add_section(clip[36 * k :][:36])
        shown += decoding
        assert psnr(np.stack([f.to_ndarray(format="rgb24") for f in shown]), clip[:36]).min() > 30


@both_modes
def test_a_finished_segment_is_never_written_again(tmp_path: Path, clip: np.ndarray, mode: Mode) -> None:
    video = writer(tmp_path, mode)
    seen: dict[str, tuple[int, int]] = {}
    for final, pending in parts_of(clip, mode):
        video.add_section(final, pending)
        now = {path.name: path.stat() for path in (tmp_path / "segments").glob("*.mp4")}
        stamps = {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in now.items()}
        assert {name: stamps[name] for name in seen} == seen
        seen = stamps
    assert len(seen) == SECTIONS


_WRITE = """
import os, sys
from pathlib import Path
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from tests.support.clips import scene, write
write(Path(sys.argv[1]), scene(int(sys.argv[2])), sys.argv[3])
"""


@pytest.mark.slow
def test_same_frames_same_bytes_in_any_process(tmp_path: Path, clip: np.ndarray) -> None:
    first = write(tmp_path / "a", clip, "inverted").read_bytes()
    assert write(tmp_path / "b", clip, "inverted").read_bytes() == first
    # The number of cores, the time zone, the hash seed and the time must not change the file.
    environment = {**os.environ, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    arguments = [sys.executable, "-c", _WRITE, str(tmp_path / "c"), str(FRAMES), "inverted"]
    subprocess.run(arguments, check=True, env=environment, cwd=Path(__file__).parents[3])
    assert (tmp_path / "c" / "video.mp4").read_bytes() == first


def test_the_file_is_what_browsers_take_and_carries_no_stamp(tmp_path: Path, clip: np.ndarray) -> None:
    path = write(tmp_path, clip, "inverted")
    data = path.read_bytes()
    found = dict(boxes(data))
    order = [name for name in found if "/" not in name]
    assert order.index("moov") < order.index("mdat")
    colour = found["moov/trak/mdia/minf/stbl/stsd/avc1/colr"]
    assert colour == b"nclx" + struct.pack(">HHHB", 1, 1, 1, 0)
    for name in ("moov/mvhd", "moov/trak/tkhd", "moov/trak/mdia/mdhd"):
        assert struct.unpack(">II", found[name][4:12]) == (0, 0)  # created, changed
    assert not re.search(rb"x264|Lavf|Lavc|libx", data)
    with av.open(path) as container:
        stream = container.streams.video[0]
        codec = stream.codec_context
        assert (codec.name, codec.profile, codec.pix_fmt) == ("h264", "High", "yuv420p")
        assert (codec.width, codec.height) == (96, 64)
        # The stream's own header, read without the container, must say bt709 three times and limited range.
        frame = next(container.decode(stream))
        assert (frame.colorspace, frame.color_range) == (1, 1)
        tags = (codec.color_primaries, codec.color_trc, codec.colorspace, codec.color_range)
        assert tags == (1, 1, 1, 1)


def test_colours_are_converted_with_the_matrix_of_bt709(tmp_path: Path) -> None:
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [90, 150, 210]])
    frames = np.broadcast_to(colours[:, None, None, :].astype(np.uint8), (6, 32, 32, 3))
    red, green, blue = colours.T / 255
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # ITU-R BT.709, 3.2 and 3.3
    expected = [16 + 219 * luma, 128 + 224 * (blue - luma) / 1.8556, 128 + 224 * (red - luma) / 1.5748]
    path = writer(tmp_path, width=32, height=32, crf=1).add_section(frames)
    with av.open(path) as container:
        planes = [frame.to_ndarray().reshape(-1) for frame in container.decode(video=0)]
    measured = [[plane.mean() for plane in np.split(p, [1024, 1280])] for p in planes]
    assert np.abs(np.array(measured) - np.array(expected).T).max() < 1.5


def test_crf_below_one_is_encoded_as_one(tmp_path: Path, clip: np.ndarray) -> None:
    sizes = {}
    for crf in (0, 1, 16, 51):
        path = writer(tmp_path / str(crf), crf=crf).add_section(clip[:9], clip[9:12])
        sizes[crf] = path.read_bytes()
        with av.open(path) as container:
            assert container.streams.video[0].codec_context.profile == "High"
    assert sizes[0] == sizes[1]
    assert len(sizes[1]) > 2 * len(sizes[16]) > 4 * len(sizes[51])


def test_finish_gives_the_latest_version_its_lasting_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = writer(tmp_path, width=32, height=32)
    first = video.add_section(flat([40] * 4), flat([60] * 4))
    assert video.finish() == tmp_path / "video.mp4"
    assert (tmp_path / "video.mp4").samefile(first)
    content = first.read_bytes()
    second = video.add_section(flat([80] * 4))
    assert (tmp_path / "video.mp4").read_bytes() == content

    def no_links(*_: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert video.finish().read_bytes() == second.read_bytes() != content
    assert first.read_bytes() == content
    assert video.finish().read_bytes() == second.read_bytes()
    assert names(tmp_path) == {
        "video.mp4", "video-0001.mp4", "video-0002.mp4", "segments/0001.mp4", "segments/0002.mp4",
        "segments/sums.json",
    }  # fmt: skip


def test_frames_may_lie_in_memory_in_any_order(tmp_path: Path, clip: np.ndarray) -> None:
    channels_first = np.ascontiguousarray(clip[:5].transpose(0, 3, 1, 2))
    strided = channels_first.transpose(0, 2, 3, 1)[::-1]
    assert psnr(read(writer(tmp_path).add_section(strided)), clip[:5][::-1]).min() > 30


lengths = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)).filter(any), min_size=1, max_size=5)


@pytest.mark.slow
@both_modes
@settings(max_examples=10)
@given(lengths=lengths)
def test_any_lengths_in_any_order(mode: Mode, lengths: list[tuple[int, int]]) -> None:
    fixed: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        video = writer(Path(folder), mode, width=32, height=32, crf=20)
        for final, pending in lengths:
            levels = [20 + 37 * (len(fixed) + k) % 210 for k in range(final)]
            guess = [25 + 53 * k % 190 for k in range(pending)]
            video.add_section(flat(levels), flat(guess if pending else []))
            assert video.latest is not None
            fixed, shown = (
                (fixed + levels, fixed + levels + guess)
                if mode == "forward"
                else (levels + fixed, guess + levels + fixed)
            )
            assert np.allclose(read(video.latest).mean((1, 2, 3)), shown, atol=6)
            decoding, showing = times(video.latest)
            assert showing == list(range(len(shown)))
            assert decoding == [k - 2 for k in range(len(shown))]
            assert video.frames == len(shown)

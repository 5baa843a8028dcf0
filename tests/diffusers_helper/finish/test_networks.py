"""Tests of the steps that compute frames: no seams between tiles, and segments that fit together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from diffusers_helper.errors import LongtakeError
from diffusers_helper.finish import enlarge
from diffusers_helper.finish.enlarge import Enlarge, Upscaler
from diffusers_helper.finish.smooth import Smooth
from diffusers_helper.finish.step import Frames, Shape, Workshop
from diffusers_helper.units import GB
from tests.support.clips import scene

NOTES: list[str] = []
WORKSHOP = Workshop(lambda source, indices: {}, NOTES.append)


def frames_of(clip: np.ndarray) -> Frames:
    def frames(begin: int, end: int) -> Iterator[np.ndarray]:
        assert 0 <= begin < end <= len(clip)
        yield from clip[begin:end]

    return frames


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_tiles_have_no_seams_and_the_picture_stays_where_it_was(factor: int) -> None:
    frame = scene(1)[0]
    whole = Upscaler("animevideov3", factor, None).enlarged(frame)
    assert whole.shape == (64 * factor, 96 * factor, 3)
    network = Upscaler("animevideov3", factor, None)
    network.tile = 40
    assert np.abs(network.enlarged(frame).astype(int) - whole).max() <= 1
    reduced = np.asarray(Image.fromarray(whole).resize((96, 64), Image.Resampling.BOX))
    assert np.abs(reduced.astype(int) - frame).mean() < 0.5


def test_each_frame_is_enlarged_once_even_if_segments_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = scene(12, 16, 16)
    enlarged = list[int]()

    def repeat(self: Upscaler, frame: np.ndarray) -> np.ndarray:
        enlarged.append(int(np.abs(clip.astype(int) - frame).sum((1, 2, 3)).argmin()))
        return frame.repeat(2, 0).repeat(2, 1)

    monkeypatch.setattr(Upscaler, "enlarged", repeat)
    frames = Enlarge(2, "x4plus").open(frames_of(clip), Shape(16, 16, Fraction(30), 12), WORKSHOP)
    assert "animevideov3 is used" in NOTES.pop()
    first, second = [*frames(0, 8)], [*frames(5, 12)]
    assert np.array_equal([frame[::2, ::2] for frame in (*first, *second)], [*clip[:8], *clip[5:]])
    assert enlarged == [*range(12)]


@pytest.mark.parametrize(
    ("weights", "cap", "side"),
    [("x4plus", 4 * GB, 400), ("x4plus", 4 * GB - 1, 200), ("x4plus", GB // 2, 100),
     ("x4plus", GB // 2 - 1, 64), ("animevideov3", GB, 400), ("animevideov3", GB - 1, 200),
     ("animevideov3", 0, 64)],
)  # fmt: skip
def test_tiles_on_a_card_are_as_large_as_its_memory_allows(
    weights: str, cap: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = list[int]()
    net = SimpleNamespace(
        opt=SimpleNamespace(use_vulkan_compute=False), set_vulkan_device=used.append, load_param=str,
        load_model=str,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ncnn", SimpleNamespace(Net=lambda: net))
    assert Upscaler(weights, 4, 1, cap).tile == side
    assert (net.opt.use_vulkan_compute, used) == (True, [1])
    assert Upscaler(weights, 4, None, cap).tile == 256
    assert used == [1]


def test_the_first_card_of_vulkan_that_is_no_processor_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [3, 1, 0]
    double = SimpleNamespace(
        get_gpu_count=lambda: len(kinds),
        get_gpu_info=lambda index: SimpleNamespace(type=lambda: kinds[index]),
    )
    monkeypatch.setitem(sys.modules, "ncnn", double)
    monkeypatch.setattr(enlarge.ctypes, "CDLL", str)
    assert enlarge.vulkan_device() == 1
    kinds[:] = [3]
    assert enlarge.vulkan_device() is None

    def lacks(name: str) -> None:
        raise OSError(name)

    kinds[:] = [0]
    assert enlarge.vulkan_device() == 0
    monkeypatch.setattr(enlarge.ctypes, "CDLL", lacks)
    assert enlarge.vulkan_device() is None


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enlarge, "_PACKAGES", ("ncnn", "sr_none"))
    with pytest.raises(LongtakeError, match="needs sr-none") as refusal:
        Enlarge(2).check()
    assert "-m pip install sr-none" in refusal.value.remedy


@pytest.mark.parametrize(
    ("rate", "smooth", "frames"), [(30, "60", 48), (Fraction(24000, 1001), "2x", 48), (24, "60", 60)]
)
def test_segments_are_smoothed_like_the_whole(rate: int | Fraction, smooth: str, frames: int) -> None:
    shape = Shape(96, 64, Fraction(rate), 24)
    clip = scene(24)
    smoothed = Smooth(smooth).open(frames_of(clip), shape, WORKSHOP)
    whole = [*smoothed(0, frames)]
    assert len(whole) == frames == Smooth(smooth).shape(shape).frames
    parts = [frame for begin in range(0, frames, 13) for frame in smoothed(begin, min(frames, begin + 13))]
    assert np.array_equal(parts, whole)
    middle = np.abs(whole[21].astype(int) - clip[int(21 * 24 / frames)]).mean()
    assert middle < np.abs(clip[8].astype(int) - clip[12]).mean()


def test_a_segment_reads_three_frames_on_each_side_as_far_as_there_are_any() -> None:
    clip, asked = scene(24), list[tuple[int, int]]()

    def frames(begin: int, end: int) -> Iterator[np.ndarray]:
        asked.append((begin, end))
        yield from clip[begin:end]

    smoothed = Smooth("60").open(frames, Shape(96, 64, Fraction(30), 24), WORKSHOP)
    for begin, end in ((0, 12), (12, 24), (36, 48)):
        assert len([*smoothed(begin, end)]) == 12
    assert asked == [(0, 9), (3, 15), (15, 24)]


def test_a_cut_is_not_blended() -> None:
    clip = np.concatenate([scene(8), scene(8)[:, :, ::-1]])
    smoothed = Smooth("60").open(frames_of(clip), Shape(96, 64, Fraction(30), 16), WORKSHOP)
    for frame in smoothed(0, 32):
        differences = np.abs(clip.astype(int) - frame).mean((1, 2, 3))
        assert differences.min() < 8

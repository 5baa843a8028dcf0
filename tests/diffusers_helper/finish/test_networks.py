"""Tests of the steps that compute frames: no seams between tiles, and segments that fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import ncnn
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
    noise = np.random.default_rng(1).integers(0, 256, frame.shape, np.uint8)
    tiled, network = (Upscaler("animevideov3", factor) for _ in range(2))
    tiled.tile = 40
    for picture in (noise, frame):
        whole = network.enlarged(picture)
        assert whole.shape == (64 * factor, 96 * factor, 3)
        assert np.abs(tiled.enlarged(picture).astype(int) - whole).max() <= 1
    reduced = np.asarray(Image.fromarray(whole).resize((96, 64), Image.Resampling.BOX))
    assert np.abs(reduced.astype(int) - frame).mean() < 0.8


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


@pytest.mark.parametrize(("code", "value"), [(-100, 0.5), (0, 0.0), (0, float("nan"))])
def test_a_card_that_fails_is_left_for_the_processor_once(
    code: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Any]()

    class Net(ncnn.Net):  # pyright: ignore[reportAttributeAccessIssue]
        """A network whose card has no room, or computes nothing."""

        card: int | None = None

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def set_vulkan_device(self, device: int) -> None:
            self.card = device

        def create_extractor(self) -> Any:
            if self.card is None:
                return super().create_extractor()
            return SimpleNamespace(input=lambda *_: 0, extract=lambda name: (code, output))

    output = np.full((3, 64, 64), value, np.float32)
    monkeypatch.setattr(ncnn, "Net", Net)
    monkeypatch.setattr(enlarge, "vulkan_device", lambda: 1)
    clip = scene(2, 32, 32)
    workshop = replace(WORKSHOP, cap_bytes=10**9)
    frames = Enlarge(2).open(frames_of(clip), Shape(32, 32, Fraction(30), 2), workshop)
    expected = [Upscaler("animevideov3", 2).enlarged(frame) for frame in clip]
    assert np.array_equal([*frames(0, 2)], expected)
    assert NOTES == ["The card cannot enlarge this video; the processor does, more slowly."]
    NOTES.clear()
    card, *rest = made
    assert (card.card, card.opt.use_fp16_arithmetic) == (1, False)
    assert {network.card for network in rest} == {None}


@pytest.mark.parametrize(("kinds", "device"), [((), None), ((3,), None), ((1, 0), 1), ((3, 1), 1)])
def test_the_card_that_ncnn_prefers_is_taken(
    kinds: tuple[int, ...], device: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind 0 is a card, 1 the graphics of a processor, 3 a processor itself."""
    preferred = min(range(len(kinds)), key=kinds.__getitem__, default=-1)
    monkeypatch.setattr(enlarge.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(ncnn, "get_gpu_count", lambda: len(kinds))
    monkeypatch.setattr(ncnn, "get_default_gpu_index", lambda: preferred)
    monkeypatch.setattr(ncnn, "get_gpu_info", lambda index: SimpleNamespace(type=lambda: kinds[index]))
    assert enlarge.vulkan_device() == device


@pytest.mark.parametrize(
    ("weights", "device", "cap_gb", "used", "tile"),
    [
        ("x4plus", 0, 4, "x4plus", 400), ("x4plus", 0, 3.9, "x4plus", 200), ("x4plus", 0, 0.5, "x4plus", 100),
        ("x4plus", 0, 0.4, "x4plus", 64), ("animevideov3", 0, 1, "animevideov3", 400),
        ("animevideov3", 0, 0.5, "animevideov3", 200), ("animevideov3", None, 9, "animevideov3", 256),
        ("x4plus", None, 9, "animevideov3", 256),
    ],
)  # fmt: skip
def test_a_network_and_its_tiles_are_those_for_which_the_device_has_room(
    weights: str, device: int | None, cap_gb: float, used: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, devices, notes = list[str](), list[int](), list[str]()
    net = SimpleNamespace(
        opt=SimpleNamespace(), load_param=loaded.append, load_model=loaded.append,
        set_vulkan_device=devices.append,
    )  # fmt: skip
    monkeypatch.setattr(ncnn, "Net", lambda: net)
    workshop = Workshop(lambda source, indices: {}, notes.append, round(cap_gb * GB))
    upscaler = Enlarge(enlarge=3, weights=weights)._network(device, workshop)
    assert (upscaler.tile, devices) == (tile, [] if device is None else [device])
    name = enlarge._FILES[used].format(3)
    assert [file.rpartition("/")[2] for file in loaded] == [f"{name}.param", f"{name}.bin"]
    assert len(notes) == (used != weights)


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enlarge, "_PACKAGES", ("ncnn", "sr_none"))
    with pytest.raises(LongtakeError, match="needs sr-none") as refusal:
        Enlarge(2).prepared(())
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

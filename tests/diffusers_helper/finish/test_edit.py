"""Tests of the edit in integers: which frames of which sources are shown when, and with which weights."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.errors import InputError
from diffusers_helper.finish.edit import Edit, at_speed, colours_of, with_colours
from diffusers_helper.finish.finishing import Finishing, finishing_lines
from diffusers_helper.finish.step import Shape, Workshop
from tests.support.clips import scene

RATE = Fraction(30)
lengths = st.lists(st.integers(2, 40), min_size=1, max_size=4).map(tuple)


@given(sources=lengths, fade=st.integers(0, 5), data=st.data())
def test_every_frame_of_every_source_is_shown_once(
    sources: tuple[int, ...], fade: int, data: st.DataObject
) -> None:
    fade = min(fade, min(sources) // 2)
    mixtures = Edit(join=fade, sources=sources).mixtures(RATE)
    assert len(mixtures) == sum(sources) - fade * (len(sources) - 1)
    order = [entry[:2] for mixture in mixtures for entry in mixture]
    expected = [(source, frame) for source, length in enumerate(sources) for frame in range(length)]
    assert sorted(order) == expected
    for mixture in mixtures:
        assert sum(weight for _, _, weight in mixture) in (1, fade + 1)
        assert all(weight > 0 for _, _, weight in mixture)


@given(sources=lengths, reverse=st.booleans(), loop=st.booleans(), speed=st.fractions(Fraction(1, 10), 10))
def test_reverse_loop_and_speed_only_choose_frames(
    sources: tuple[int, ...], reverse: bool, loop: bool, speed: Fraction
) -> None:
    plain = [*Edit(sources=sources).mixtures(RATE)]
    ordered = plain[::-1] if reverse else plain
    ordered += ordered[-2:0:-1] if loop else []
    edited = Edit(reverse=reverse, loop=loop, speed=speed, sources=sources).mixtures(RATE)
    assert len(edited) == max(1, round(len(ordered) / speed))
    indices = [ordered.index(mixture) for mixture in edited]
    assert loop or indices == sorted(indices)
    assert Edit(reverse=reverse, loop=loop, sources=sources).mixtures(RATE) == tuple(ordered)


def test_fades_and_speeds_are_weighted_and_rounded_as_written() -> None:
    faded = Edit(join=2, sources=(4, 5)).mixtures(RATE)
    assert faded == (
        ((0, 0, 1),), ((0, 1, 1),), ((0, 2, 2), (1, 0, 1)), ((0, 3, 1), (1, 1, 2)), ((1, 2, 1),),
        ((1, 3, 1),), ((1, 4, 1),),
    )  # fmt: skip
    single = tuple(((0, frame, 1),) for frame in range(6))
    for speed, frames in {
        "2": (1, 3, 5),
        "1/2": (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5),
        "3": (1, 4),
        "10": (5,),
    }.items():
        assert [*at_speed(single, Fraction(speed))] == [single[frame] for frame in frames]
    assert len(Edit(speed=Fraction(1, 2), smooths=True, sources=(6,)).mixtures(RATE)) == 6
    white, grey = np.full((1, 1, 3), 255, np.uint8), np.full((1, 1, 3), 100, np.uint8)
    read = {0: {2: white, 3: white}, 1: {0: grey, 1: grey}}
    shape = Shape(1, 1, RATE, 9)
    workshop = Workshop(lambda source, wanted: {frame: read[source][frame] for frame in wanted}, [].append)
    mixed = Edit(join=2, sources=(4, 5)).open(lambda begin, end: iter(()), shape, workshop)(2, 4)
    assert [frame[0, 0, 0] for frame in mixed] == [203, 152]  # 610 / 3 and 455 / 3, to the nearest


@pytest.mark.parametrize(
    "text",
    [
        "speed:0.1", "speed:10", "join:300", "join:0", "enlarge:2", "enlarge:4", "trim:1.125-", "smooth:999",
        "source:96x64*36000@30", ",".join(32 * ["source:96x64*1@30"]),
        "source:96x64*8@30,source:96x64*8@30,join:4", "source:96x64*30@60,smooth:120",
        "source:2048x1536*9@30,enlarge:3",
    ],
)  # fmt: skip
def test_the_last_value_that_is_allowed_is_taken_and_the_next_one_is_not(text: str) -> None:
    assert Finishing.of(text)
    beyond = {
        "0.1": "0.099", ":10": ":10.1", "300": "301", "enlarge:2": "enlarge:1", "enlarge:4": "enlarge:5",
        "1.125": "1.1251", "999": "1000", "36000": "36001", "*1@30": "*1@30,source:96x64*1@30",
        "join:4": "join:5", "120": "121", "2048x1536": "2048x2050",
    }  # fmt: skip
    for last, further in beyond.items():
        if last in text:
            with pytest.raises(InputError):
                Finishing.of(text.replace(last, further, 1))


def test_segments_are_equal_parts_of_what_may_be_in_memory() -> None:
    for text, sizes in {
        "source:96x64*72@30": [36, 36], "source:96x64*73@30": [24, 24, 25], "source:96x64*3@30": [3],
        "source:96x64*20@1": [6, 7, 7], "source:2000x2000*44@30": [22, 22],
    }.items():  # fmt: skip
        finishing = Finishing.of(text)
        assert [len(segment) for segment in finishing.segments] == sizes
        assert [section.total_frames for section in finishing.plan] == [*np.cumsum(sizes)]
    both = Finishing.of("source:96x64*30@30,source:50x50*11@25,join:0")
    assert (both.edit.sources, both.result.frames) == ((30, 13), 43)


def test_a_trim_takes_the_frames_of_its_times() -> None:
    for trim, frames in {
        "0.5-2": range(15, 60),
        "1-": range(30, 90),
        "-0.1": range(3),
        "2-9": range(60, 90),
    }.items():
        mixtures = Edit(trim=trim, sources=(90,)).mixtures(RATE)
        assert [frame for ((_, frame, _),) in mixtures] == [*frames]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("enlarge:5", "has enlarge '5'; expected enlarge:2|3|4 (make it larger, with Real-ESRGAN)"),
        ("reverse:2", "has reverse '2'; expected reverse without a value"),
        ("wobble", "has 'wobble'; expected some of trim"),
        ("trim:2", "expected trim:FROM-TO (the part to take, in seconds"),
        ("source:96x64*90@30,trim:2-1", "but the video has 3.00 s; expected a part of the video"),
        ("speed:1/0", "expected speed:N (from 0.1 to 10"),
        ("smooth:60,smooth:48", "has smooth twice"),
        ("source:96x64*30@30,trim:5-", "but the video has 1.00 s"),
        ("source:96x64*30@60,smooth:60", "more than the 60 frames per second"),
        ("source:96x64*30@30,source:96x64*8@30,join:5", "at most 4, half of the shortest"),
        ("source:4096x2304*9@30,enlarge:3", "12288x6912 are 85 million"),
        ("source:96x64*30000@30,speed:0.1", "has a video of 10000 s; expected at most 1200 s"),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_done_is_refused_in_words(text: str, problem: str) -> None:
    with pytest.raises(InputError) as refusal:
        Finishing.of(text)
    assert problem in str(refusal.value)


def test_a_text_is_written_in_the_order_of_the_steps_and_plans_its_segments() -> None:
    finishing = Finishing.of("source:95x64*73@30000/1001+sound, smooth:2x enlarge:3,speed:0.5")
    assert str(finishing) == "source:95x64*73@30000/1001+sound,speed:1/2,enlarge:3,smooth:2x"
    assert finishing.words == "speed:1/2,enlarge:3,smooth:2x"
    result = finishing.result
    # A slow motion keeps the frames, at half the rate, and the frames in between are made.
    assert (result.width, result.height, result.rate, result.frames) == (284, 192, RATE * 1000 / 1001, 146)
    assert [index for segment in finishing.segments for index in segment] == [*range(146)]
    assert finishing.plan.total_frames == 146
    assert abs(finishing.plan.seconds - 2 * 73 * 1001 / 30000) < 1e-9
    with pytest.raises(InputError, match="no join"):
        [*finishing_lines("enlarge:2\njoin:3")]


def test_steady_colours_undo_a_drift_and_leave_the_same_frame_alone() -> None:
    frame = scene(1)[0]
    reference = colours_of(frame)
    assert np.abs(with_colours(frame, reference).astype(int) - frame).max() <= 1
    drifted = np.clip(frame * 0.9 + (12, 4, -6), 0, 255).astype(np.uint8)
    error = np.abs(with_colours(drifted, reference).astype(int) - frame).mean()
    assert error < 1 < 8 < np.abs(drifted.astype(int) - frame).mean()

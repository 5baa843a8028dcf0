"""Tests of the edit in integers: which frames of which sources are shown when, and with which weights."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

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


A, ONE = "source:96x64*90@30", "source:96x64*1@30,"
TEXTS = f"""
enlarge:5 enlarge:4 enlarge:2 enlarge:1 reverse:2 wobble trim:2 trim:1.1251- speed:0.1 speed:0.099
speed:10 speed:10.1 speed:1/0 join:300 join:301 join:0 smooth:999 smooth:1000 smooth:60,smooth:48
smooth:60,smooth:60 source:96x64*36000@30 source:96x64*36001@30 {32 * ONE} {33 * ONE} {A},trim:0.5-2
{A},trim:1- {A},trim:-0.1 {A},trim:2-9 {A},trim:2-1 {A},trim:3- {A},trim:1.125- {A},speed:0.5
{A},speed:0.5,smooth:2x {A},speed:3 {A},speed:10,reverse,loop {A},loop,mute {A},colours
{A},enlarge:2,smooth:60 source:96x64*8@30,source:96x64*8@30,join:4
source:96x64*8@30,source:96x64*8@30,join:5 source:96x64*30@60,smooth:120 source:96x64*30@60,smooth:121
source:96x64*30@60,smooth:60 source:96x64*8@60,smooth:110
source:2048x1536*9@30,enlarge:3 source:2048x2050*9@30,enlarge:3
source:96x64*30000@30,speed:0.1 source:96x64*72@30 source:96x64*73@30 source:96x64*3@30 source:96x64*20@1
source:2000x2000*45@30 source:96x64*30@30,source:50x50*11@25,join:0 enlarge:2,join:3
source:95x64*73@30000/1001+sound,smooth:2x,enlarge:3,speed:0.5
""".split()


def test_what_each_text_becomes(snapshot: SnapshotAssertion) -> None:
    lines = list[str]()
    for text in TEXTS:
        try:
            finishing = Finishing.of(text)
            lines.append(f"{text[:90]} => {finishing.words} {told(finishing) if finishing.sources else ''}")
        except InputError as error:
            lines.append(f"{text[:90]} => {error}")
    with pytest.raises(InputError, match="no join"):
        [*finishing_lines("enlarge:2\njoin:3")]
    assert "\n".join(map(str.rstrip, lines)) == snapshot


def told(finishing: Finishing) -> str:
    mixtures = finishing.edit.mixtures(finishing.sources[0].rate)
    view = [mixtures[index] for index in (0, 1, len(mixtures) // 2, -1) if -1 <= index < len(mixtures)]
    plan = [section.total_frames for section in finishing.plan]
    result, work = finishing.result, finishing.nominal_seconds
    times = f"{result.seconds:.3f} s, {work:.3g} s, {finishing.nominal_bytes} B"
    sizes = f"ends {plan[:4]} of {len(plan)} | {len(mixtures)} frames: {view}"
    return f"{finishing} | {result} | {times} | {sizes}"


def test_steady_colours_undo_a_drift_and_leave_the_same_frame_alone() -> None:
    frame = scene(1)[0]
    reference = colours_of(frame)
    assert np.abs(with_colours(frame, reference).astype(int) - frame).max() <= 1
    drifted = np.clip(frame * 0.9 + (12, 4, -6), 0, 255).astype(np.uint8)
    error = np.abs(with_colours(drifted, reference).astype(int) - frame).mean()
    assert error < 1 < 8 < np.abs(drifted.astype(int) - frame).mean()

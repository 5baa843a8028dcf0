"""Tests of section arithmetic: FramePack's tables as they are, and whole videos made of labelled frames."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.families.packing import (
    HISTORY,
    MODES,
    Mode,
    frame_indices,
    paddings,
    plan_sections,
    with_closing_section,
)

lengths = st.floats(1, 120)
windows = st.integers(1, 33)
modes = st.sampled_from(MODES)
both_modes = pytest.mark.parametrize("mode", MODES)


def span(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


@both_modes
@pytest.mark.parametrize(
    ("seconds", "sections", "frames", "real"),
    [
        (1, 1, 37, 1.23),
        (1.2, 1, 37, 1.23),
        (1.8, 2, 73, 2.43),
        (3, 2, 73, 2.43),  # 2.5 sections: halves round to even
        (4, 3, 109, 3.63),
        (5, 4, 145, 4.83),
        (5.4, 4, 145, 4.83),  # 4.5 sections
        (6, 5, 181, 6.03),
        (10, 8, 289, 9.63),
        (15, 12, 433, 14.43),
        (30, 25, 901, 30.03),
        (60, 50, 1801, 60.03),
        (120, 100, 3601, 120.03),
    ],
)
def test_lengths_of_framepack(mode: Mode, seconds: float, sections: int, frames: int, real: float) -> None:
    plan = plan_sections(seconds, mode=mode)
    assert len(plan) == len(list(plan)) == sections
    assert plan.total_frames == plan[-1].total_frames == frames
    assert round(plan.seconds, 2) == real


def test_paddings_of_framepack() -> None:
    assert paddings(1) == (0,)
    assert paddings(2) == (1, 0)
    assert paddings(3) == (2, 1, 0)
    assert paddings(4) == (3, 2, 1, 0)
    assert paddings(5) == (3, 2, 2, 1, 0)
    assert paddings(8) == (3, 2, 2, 2, 2, 2, 1, 0)
    assert paddings(50) == (3, *[2] * 47, 1, 0)


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_inverted_positions_of_framepack(padding: int) -> None:
    indices = frame_indices("inverted", padding=padding)
    after = 9 * padding
    assert indices.start == (0,)
    assert indices.noisy == span(after + 1, after + 9)
    assert indices.history_1x == (after + 10,)
    assert indices.history_2x == span(after + 11, after + 12)
    assert indices.history_4x == span(after + 13, after + 28)
    assert indices.clean == (0, after + 10)


def test_forward_positions_of_framepack() -> None:
    indices = frame_indices("forward")
    assert indices.start == (0,)
    assert indices.history_4x == span(1, 16)
    assert indices.history_2x == span(17, 18)
    assert indices.history_1x == (19,)
    assert indices.noisy == span(20, 28)
    assert indices.clean == (0, 19)


@given(mode=modes, window=windows, padding=st.integers(0, 3))
def test_positions_are_disjoint_and_leave_only_the_padding_out(mode: Mode, window: int, padding: int) -> None:
    indices = frame_indices(mode, window, padding)
    parts = [indices.start, indices.noisy, indices.history_1x, indices.history_2x, indices.history_4x]
    assert [len(part) for part in parts] == [1, window, 1, 2, 16]
    for part in parts:
        assert part == span(part[0], part[-1])
    used = [index for part in parts for index in part]
    blank = padding * window if mode == "inverted" else 0
    assert sorted(used) == [0, *span(1 + blank, blank + window + HISTORY)]


@given(seconds=lengths, mode=modes, window=windows)
def test_sections_of_a_plan_carry_their_positions(seconds: float, mode: Mode, window: int) -> None:
    plan = plan_sections(seconds, mode, window)
    for section in plan:
        assert section.indices == frame_indices(mode, window, section.padding)
        assert mode == "inverted" or section.padding == 0
        assert section.has_start == (mode == "inverted" and section.number == len(plan))
    positions = [section.video_index for section in plan]
    assert positions == (list(range(len(plan))) if mode == "forward" else list(range(len(plan)))[::-1])


def test_frames_after_each_section_of_framepack() -> None:
    inverted, forward = plan_sections(5, mode="inverted"), plan_sections(5, mode="forward")
    assert [section.total_frames for section in inverted] == [33, 69, 105, 145]
    assert [section.total_frames for section in forward] == [37, 73, 109, 145]
    assert [section.decode_latents for section in inverted] == [9, 18, 18, 19]
    assert [section.decode_latents for section in forward] == [10, 18, 18, 18]
    assert [section.decoded_frames for section in inverted] == [33, 69, 69, 73]
    assert [section.decoded_frames for section in forward] == [37, 69, 69, 69]
    for plan in (inverted, forward):
        assert [section.overlap_frames for section in plan] == [0, 33, 33, 33]
        assert [section.pending_frames for section in plan] == [33, 33, 33, 0]
    assert [section.final_frames for section in inverted] == [0, 36, 36, 73]
    assert [section.final_frames for section in forward] == [4, 36, 36, 69]
    for plan in (plan_sections(1, mode="inverted"), plan_sections(1, mode="forward")):
        assert (plan[0].decode_latents, plan[0].final_frames, plan[0].pending_frames) == (10, 37, 0)


def test_a_loop_has_one_more_section_behind_the_others() -> None:
    for seconds, count in ((1.0, 1), (3.6, 3)):
        plain = plan_sections(seconds)
        plan = with_closing_section(plain)
        assert plan.sections[:-1] == plain.sections
        closing = plan[-1]
        assert (closing.number, closing.video_index) == (count + 1, count)
        assert (closing.indices, closing.decode_start) == (frame_indices("inverted"), -9)
        counts = closing.decode_latents, closing.decoded_frames, closing.overlap_frames, closing.final_frames
        assert counts == (18, 69, 33, 36)
        assert plan.total_frames == 36 * (count + 1) + 1


def decoded(latents: range) -> list[int]:
    """Return the video frames of a decode of these latent frames: one for the first, then four each."""
    return list(range(4 * latents[0], 4 * latents[-1] + 1))


@given(seconds=lengths, mode=modes, window=windows)
def test_sections_put_together_are_the_video_in_order(seconds: float, mode: Mode, window: int) -> None:
    """Label frame f of the video with f, and expect the frames in order; latent frame 0 is the picture's."""
    plan = plan_sections(seconds, mode, window)
    video: list[int] = []
    pending: list[int] = []
    for section in plan:
        first = section.video_index * window + 1
        if mode == "inverted":
            begin = 0 if section.has_start else first
            frames = decoded(range(begin, begin + section.decode_latents))
            facing = frames[len(frames) - section.overlap_frames :]
            pending_now, final = frames[: section.pending_frames], frames[section.pending_frames :]
        else:
            end = first + window
            frames = decoded(range(end - section.decode_latents, end))
            facing = frames[: section.overlap_frames]
            split = len(frames) - section.pending_frames
            pending_now, final = frames[split:], frames[:split]
        # Blended parts show the same frames, and nothing that was called final is decoded again.
        assert facing == pending
        assert not set(frames) & set(video)
        assert len(final) == section.final_frames
        video = final + video if mode == "inverted" else video + final
        pending = pending_now
        so_far = pending + video if mode == "inverted" else video + pending
        assert so_far == list(range(so_far[0], so_far[0] + section.total_frames))
    assert not pending
    assert video == list(range(plan.total_frames))


@pytest.mark.parametrize("seconds", [0, 0.99, -5, math.nan, math.inf])
def test_lengths_that_cannot_be_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"seconds is .*; expected a number of at least 1"):
        plan_sections(seconds)

"""Tests of section arithmetic: FramePack's tables as they are, and whole videos made of labelled frames."""

from hypothesis import given
from hypothesis import strategies as st

from diffusers_helper.families.packing import (
    HISTORY,
    MODES,
    Mode,
    frame_indices,
    plan_sections,
)

lengths = st.floats(1, 120)
windows = st.integers(1, 33)
modes = st.sampled_from(MODES)


def span(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


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

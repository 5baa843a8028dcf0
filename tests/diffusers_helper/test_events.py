"""Tests of the event stream, whose names and fields are an interface and which survives JSON."""

from typing import Any

from diffusers_helper.events import (
    Cancelled,
    StageStarted,
    StepDone,
    from_dict,
)

COMMON: dict[str, Any] = {"job": "20261121-081530-3f9a", "time": 1.25}


def test_a_log_of_version_0_1_is_read() -> None:
    data = {"event": "stage_started", **COMMON, "stage": "image", "section": None}
    assert from_dict(data) == StageStarted(**COMMON, stage="vae_encode")
    assert from_dict({"event": "cancelled", **COMMON, "video": None, "frames": 0}) == Cancelled(
        **COMMON, video=None, frames=0
    )


def test_steps_count_over_sections_of_different_numbers_of_steps() -> None:
    def places(expected: list[int], *steps: int) -> list[tuple[int, int]]:
        return [
            StepDone(**COMMON, section=section, step=1, steps=number).progress(expected)
            for section, number in enumerate(steps, 1)
            if number
        ]

    assert places([12, 6, 6], 12, 6, 6) == [(1, 24), (13, 24), (19, 24)]
    assert places([0, 0, 0], 12, 6, 6) == [(1, 36), (13, 24), (19, 24)]
    assert places([0, 0, 0], 0, 0, 6) == [(13, 18)]  # a job that goes on in its third section
    assert places([8, 8, 8], 8, 20, 20) == [(1, 24), (9, 48), (29, 48)]

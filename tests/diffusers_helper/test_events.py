"""Tests of the event stream, whose names and fields are an interface and which survives JSON."""

import json
from typing import Any, get_args

import pytest

from diffusers_helper import events
from diffusers_helper.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    JobStarted,
    PieceDone,
    Reading,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
    event_name,
    from_dict,
    to_dict,
)

COMMON: dict[str, Any] = {"job": "20261121-081530-3f9a", "time": 1.25}
# The name of each event, its fields, and the defaults of the others, as pages, scripts and stores read them
STREAM: list[tuple[str, type[Event], dict[str, object], dict[str, object]]] = [
    (
        "job_started", JobStarted,
        {"sections": 4, "frames": 145, "width": 640, "height": 608, "attention": "sliced"},
        {"kernels": ""},
    ),
    (
        "stage_started", StageStarted, {"stage": "text"},
        {"section": None, "expected_seconds": 0.0, "seconds_to_video": 0.0},
    ),
    ("reading", Reading, {"done_bytes": 5, "total_bytes": 7}, {}),
    ("step_done", StepDone, {"section": 2, "step": 11, "steps": 25}, {"preview": None, "skipped": 0}),
    ("piece_done", PieceDone, {"stage": "decode", "section": 2, "piece": 3, "pieces": 6}, {}),
    (
        "section_finished", SectionFinished, {"section": 2, "sections": 4, "video": "/o/a.mp4", "frames": 69},
        {"added_in_front": 0, "thumbnail": None},
    ),
    ("warned", Warned, {"message": "Wörter"}, {}),
    (
        "finished", Finished, {"video": "/o/video.mp4", "frames": 145, "seconds": 61.5},
        {
            "peak_host_bytes": 0, "peak_device_bytes": 0, "cap_bytes": 0, "bytes_streamed": 0, "retries": 0,
            "vae_tile_px": None, "advice": "", "steps_skipped": 0,
        },
    ),
    ("cancelled", Cancelled, {"video": None, "frames": 0}, {"peak_host_bytes": 0}),
    (
        "failed", Failed, {"message": "It is broken.", "remedy": "Mend it."},
        {"detail": "", "code": "error", "setting": "", "video": None, "frames": 0},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "values", "defaults"), STREAM)
def test_json_of_each_event(
    name: str, kind: type[Event], values: dict[str, Any], defaults: dict[str, Any]
) -> None:
    event = kind(**COMMON, **values)
    data = {"event": name, **COMMON, **values, **defaults}
    assert to_dict(event) == data
    assert list(to_dict(event))[:3] == ["event", "job", "time"]
    assert from_dict(json.loads(json.dumps(data))) == event
    assert from_dict({**data, "a field of a later version": 7}) == event


def test_every_kind_of_event_is_known_and_only_three_are_final() -> None:
    defined = [value for value in vars(events).values() if isinstance(value, type)]
    kinds = {kind for kind in defined if issubclass(kind, Event) and kind is not Event}
    assert kinds == {kind for _, kind, *_ in STREAM}
    assert {kind for kind in kinds if kind.is_final} == {Finished, Cancelled, Failed}
    assert {event_name(kind) for kind in kinds} == {name for name, *_ in STREAM}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "list indices"),
        ({}, "'event'"),
        ({"event": "exploded"}, "'exploded'"),
        ({"event": ["job_started"]}, "unhashable"),
        ({"event": "warned", "job": "a"}, "'time' and 'message'"),
        ({"event": "stage_started", **COMMON, "stage": "sing"}, "'sing'"),
    ],
)
def test_what_is_no_event_is_refused(data: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        from_dict(data)


def test_a_log_of_version_0_1_is_read() -> None:
    data = {"event": "stage_started", **COMMON, "stage": "image", "section": None}
    assert from_dict(data) == StageStarted(**COMMON, stage="vae_encode")
    assert from_dict({"event": "cancelled", **COMMON, "video": None, "frames": 0}) == Cancelled(
        **COMMON, video=None, frames=0
    )


def test_every_stage_has_words() -> None:
    assert {*get_args(events.Stage)} < {*events.STAGES}
    networks = [name for name, facts in events.STAGES.items() if facts.network]
    assert networks == ["text", "text_2", "vae_encode", "vision", "sample", "sample_low", "decode"]
    assert events.STAGES["load"].title == "Loading the model"


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

"""Tables of what the page says of a job in each state, and of each card."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.job import NoSuchJob
from app.jobs.storage.commands import WAITS
from app.ui.live import words
from app.ui.live.progress import Cell, LiveJob
from app.ui.queue.records import card_lines
from tests.support.reported_jobs import job_of


def live_of(mode: Any = "inverted", seconds: float = 3.6, *, one_frame: int = 0, **facts: Any) -> LiveJob:
    """Return a watched job whose own facts are those of the job, and all others those of the watch."""
    names = LiveJob.__dataclass_fields__.keys()
    job = job_of(mode, seconds, **{name: value for name, value in facts.items() if name not in names})
    live = LiveJob(replace(job, request=replace(job.request, one_frame=one_frame)))
    for name in facts.keys() & names:
        setattr(live, name, facts[name])
    return live


MADE: dict[str, Any] = {"video": "/v.mp4", "video_frames": 73}
REMARKS: list[tuple[LiveJob, dict[str, Any], str]] = [
    (live_of(state="queued", message="No model.", remedy="Get it."), {}, "No model. Get it."),
    (live_of(state="queued"), {"awake": True}, "It starts by itself; you may close this tab."),
    (live_of(state="queued"), {"queue_is_paused": True}, "You may close this tab."),
    (live_of(state="waiting", message="Full.", remedy="Free it."), {}, "Full. Free it."),
    (live_of(state="paused", message="Paused."), {}, ""),
    (live_of(state="paused", **WAITS), {}, WAITS["message"]),
    (live_of(state="interrupted", message="Ended."), {"commands": {"stop_after_section"}}, "Ended."),
    (live_of(section=1), {"commands": {"stop_after_section"}}, "It ends after the current section."),
    (live_of(state="cancelled"), {}, "No section was finished, so there is no video."),
    (live_of(state="finished", **MADE), {}, "2.43 s, 73 frames"),
    (live_of(state="failed", **MADE), {}, "The part made until then is kept: 2.43 s, 73 frames."),
    (live_of(state="finished", one_frame=9, **MADE), {}, "One picture"),
    (live_of(stage="text", expected=3.0), {"awake": True}, "The computer stays awake meanwhile."),
    (live_of(section=1, step=3, stage="sample"), {}, "This first video shows how fast the machine is."),
]  # fmt: skip


@pytest.mark.parametrize(("live", "facts", "expected"), REMARKS)
def test_the_remark_fits_the_state(live: LiveJob, facts: dict[str, Any], expected: str) -> None:
    for name, value in facts.items():
        setattr(live, name, value)
    assert words.remark(live) == expected


@pytest.mark.parametrize(
    ("mode", "seconds", "expected"),
    [
        ("inverted", 3.6, "The video grows towards its beginning."),
        ("forward", 3.6, "The video grows at its end."),
        ("inverted", 1.0, ""), ("forward", 1.0, ""),
    ],
)  # fmt: skip
def test_a_video_grows_where_its_order_says(mode: Any, seconds: float, expected: str) -> None:
    live = live_of(mode, seconds, section=1, step=3, stage="sample")
    live.timing.add_tail(1.0, 1)
    assert words.remark(live) == expected


@pytest.mark.parametrize(
    ("state", "seconds", "kind", "now", "label"),
    [
        ("running", 90.0, "Next", "Section 1, about 1 min 30 s left", "Watch it"),
        ("running", None, "Next", "Section 1", "Watch it"),
        ("queued", 90.0, "Next", "It begins in a moment.", "Show it"),
        ("waiting", None, "Next", "", "Show it"),
        ("paused", None, "Newest", "", "Show it"),
        ("finished", None, "Also finished", "", "Show it"),
        ("failed", None, "Another one failed", "", "Show it"),
        ("cancelled", None, "Newest", "", "Show it"),
    ],
)
def test_another_video_is_announced_by_its_state(
    state: Any, seconds: float | None, kind: str, now: str, label: str
) -> None:
    told = words.announcement(live_of(state=state), "Section 1", seconds)
    assert told == {"kind": kind, "prompt": "a <b>ball</b>", "now": now, "label": label}


def test_what_comes_next_is_told_with_its_time() -> None:
    cell = Cell(2, 1.2, 2.4, "waiting", "")
    start = "New words are used from 1.2 to 2.4 s"
    assert words.what_comes_next(cell, "inverted", 3) == (
        f"{start} and for all before that. What is made keeps its words."
    )
    assert " and for all after that." in words.what_comes_next(cell, "forward", 3)
    assert words.what_comes_next(cell, "forward", 2) == f"{start}. What is made keeps its words."
    live = live_of(stages={None: 0.04, "load": 0.05, "sample": 2.0})
    assert [seconds for _, seconds in words.stage_seconds(live)] == [0.05, 2.0]
    assert words.made_with(replace(live, width=96, height=64)) == [("Size", "96 × 64, 30 fps")]
    assert words.made_with(live_of(card="card 0")) == [("Made on", "card 0")]
    said = {name: value for name, value, _ in words.settings(live_of("forward", 3.6).job.request)}
    assert said["Model"] == "Longtake demo model"
    assert "Steps" in said


def test_a_card_tells_what_it_does_and_what_can_be_done() -> None:
    pause, leave, back = (
        ("pause", "Pause this card"),
        ("leave", "Take out of service"),
        "Put back into service",
    )
    gb = 2**30
    rows: list[tuple[dict[str, Any], str, str, list[tuple[str, str]]]] = [
        ({}, "Free", "2 GB of 24 GB", [pause, leave]),
        ({"is_used": False}, "Another program uses it", "2 GB of 24 GB", [pause, leave]),
        ({"job": "j"}, "Makes a ball", "2 GB of 24 GB", [pause, leave]),
        ({"job": "gone", "used_bytes": 0}, "Makes a video", "24 GB", [pause, leave]),
        ({"is_in_service": False}, "Out of service", "2 GB of 24 GB", [("return", back)]),
        (
            {"is_in_service": False, "job": "j"}, "Out of service after this video: a ball", "2 GB of 24 GB",
            [("return", back), pause],
        ),
        (
            {"is_in_service": False, "trouble": "It died."}, "Out of service. It died.", "2 GB of 24 GB",
            [("return", back)],
        ),
        ({"is_in_service": False, "away": "It is away."}, "Out of service. It is away.", "24 GB", []),
        (
            {"is_in_service": False, "away": "It is away.", "trouble": "It died."},
            "Out of service. It died.", "24 GB", [("return", back)],
        ),
        ({"size": ""}, "Free", "", [pause, leave]),
    ]  # fmt: skip
    for facts, now, memory, buttons in rows:
        state = {
            "job": "",
            "used_bytes": 2 * gb,
            "is_in_service": True,
            "trouble": "",
            "is_used": True,
            **facts,
        }
        card = SimpleNamespace(
            key="0", label="card 0", size=facts.get("size", "24 GB"), away=facts.get("away", "")
        )
        worker = SimpleNamespace(**state, card=card, is_busy=bool(state["job"]))

        def job(job_id: str) -> Any:
            if job_id != "j":
                raise NoSuchJob(job_id)
            made = job_of()
            return replace(made, request=replace(made.request, prompt="a ball"))

        crew = SimpleNamespace(workers=(worker,), uses=lambda _, state=state: state["is_used"])
        service: Any = SimpleNamespace(crew=crew, engines=2, job=job)
        (line,) = card_lines(service)
        assert (line["now"], line["memory"], line["buttons"]) == (now, memory, buttons)
        assert (line["card"], line["name"], line["job"]) == ("0", "card 0", state["job"])
        assert line["isOut"] == (not state["is_in_service"])
        service.engines = 1
        assert card_lines(service) == []

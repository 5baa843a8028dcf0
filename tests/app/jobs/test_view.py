"""Tests that Python alone decides what a job's state allows, and that the queue refuses by the same rule."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

import app.ui
from app.jobs.job import ALLOWED, TRANSITIONS, Action, Job, JobState, allows
from app.jobs.storage.commands import PAUSED
from app.jobs.view import (
    WORDS,
    actions,
    buttons,
    full_record,
    row_buttons,
    sentence,
    share_done,
    states_named,
    title_of,
    view,
)
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.support.shared import Sharing

# The cards of models name the states of downloads, some of which have the same names.
SCRIPTS = [path for path in Path(app.ui.__file__).parent.rglob("*.js") if path.parent.name != "models"]
STATES: tuple[JobState, ...] = get_args(JobState)
EXPECTED = {
    "queued": "edit pause cancel reorder remove duplicate branch change wait",
    "running": "watch pause stop_after_section cancel duplicate branch change wait",
    "waiting": "watch pause stop_after_section cancel duplicate branch change wait",
    "paused": "edit resume cancel reorder remove duplicate branch change wait",
    "interrupted": "resume cancel reorder remove duplicate branch change wait",
    "finished": "remove duplicate branch",
    "failed": "resume retry remove duplicate branch change",
    "cancelled": "resume retry remove duplicate branch change",
}
JOB = Job(
    id="20261123-101530-3f9a", state="queued", created=0.0, folder=Path("/o/20261123-101530-3f9a"),
    request=GenerationRequest(image="/o/p.png", seconds=2.4), frames=36,
)  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_actions(state: JobState) -> None:
    job = replace(JOB, state=state)
    assert actions(job) == EXPECTED[state].split()
    shown = view(job)
    assert shown["actions"] == actions(job)
    assert shown["sentence"]
    assert shown["percent"] == (100.0 if state == "finished" else pytest.approx(36 / 73 * 100, abs=0.1))


def test_the_rule_agrees_with_the_changes_that_a_state_can_have() -> None:
    assert ALLOWED.keys() == TRANSITIONS.keys() == WORDS.keys() == set(STATES)
    ends: dict[Action, JobState] = {"cancel": "cancelled", "pause": "paused", "resume": "queued"}
    for state in STATES:
        for action, after in ends.items():
            assert action not in ALLOWED[state] or after in TRANSITIONS[state], (state, action)


def test_a_job_that_has_begun_is_not_edited_and_a_lost_request_is_not_used() -> None:
    for state in STATES:
        assert not allows(replace(JOB, state=state, started=1.0), "edit")
    assert actions(replace(JOB, state="failed", damage="request")) == ["remove"]
    assert states_named(None) == []
    assert states_named(["paused", "failed"]) == ["paused", "failed"]
    with pytest.raises(InputError, match="'begun' is not a state; expected queued, running, waiting"):
        states_named(["paused", "begun"])


PAUSING, STOPS = ("Pausing …", False), ("Ends after this section", False)
PAUSE, STOP, RESUME, END = (
    ("Pause Generation", True), ("Stop after this section", True), ("Resume", True), ("End it here", True)
)  # fmt: skip
ON_STAGE: list[tuple[str, str, int, int, dict[str, tuple[str, bool]]]] = [
    ("running", "", 1, 2, {"pause": PAUSE, "stop_after_section": STOP}),
    ("running", "change wait", 1, 2, {"pause": PAUSE, "stop_after_section": STOP}),
    ("running", "", 2, 2, {"pause": PAUSE, "stop_after_section": (STOP[0], False)}),
    ("waiting", "", 1, 1, {"pause": PAUSE}),
    ("running", "pause", 1, 2, {"pause": PAUSING}),
    ("waiting", "stop_after_section", 1, 2, {"stop_after_section": STOPS}),
    ("running", "stop_after_section pause", 1, 2, {"pause": PAUSING}),
    ("running", "cancel", 1, 2, {}),
    ("running", "cancel pause", 1, 2, {}),
    ("running", "cancel stop_after_section", 1, 2, {}),
    ("queued", "", 0, 2, {"pause": PAUSE}),
    ("paused", "", 1, 2, {"resume": RESUME, "cancel": END}),
    ("interrupted", "", 1, 2, {"resume": RESUME, "cancel": END}),
    ("failed", "", 1, 2, {"resume": RESUME}),
    ("cancelled", "", 1, 2, {"resume": RESUME}),
    ("finished", "", 2, 2, {}),
]


@pytest.mark.parametrize(("state", "commands", "section", "sections", "expected"), ON_STAGE)
def test_the_stage_has_the_buttons_of_a_state_and_of_what_was_asked(
    state: JobState, commands: str, section: int, sections: int, expected: dict[str, tuple[str, bool]]
) -> None:
    asked: Any = commands.split()
    shown = buttons(replace(JOB, state=state, started=1.0), asked, section, sections)
    assert {name: (button["label"], button["enabled"]) for name, button in shown.items()} == expected
    is_ending = bool({"cancel", "pause", "stop_after_section"} & {*asked})
    left_out = ("edit", "pause", "stop_after_section") if is_ending else ("edit",)
    offered = [action for action in EXPECTED[state].split() if action not in left_out]
    assert actions(replace(JOB, state=state, started=1.0), asked) == offered


def test_a_row_offers_what_is_allowed_and_moves_instead_of_an_end() -> None:
    every = list(get_args(Action))
    shown = ["edit", "resume", "pause", "stop_after_section", "remove"]
    moves = ["first", "earlier", "later", "last"]
    for allowed, in_sight, more in (
        (every, shown, [*moves, "watch", "duplicate"]),
        ([name for name in every if name != "reorder"], shown, ["watch", "duplicate", "cancel"]),
        (["reorder"], [], moves),
        ([], [], []),
    ):
        row = row_buttons(allowed)  # pyright: ignore[reportArgumentType]
        assert [name for name, _ in row["shown"]] == in_sight
        assert [name for name, _ in row["more"]] == more


QUEUED = replace(JOB, message="No model.", remedy="Get it.")
RUNS, SECTION = replace(JOB, state="running", message="Full.", remedy="Free it."), {"work": "Section 2"}
SENTENCES: list[tuple[Job, dict[str, Any], str]] = [
    (JOB, {}, "Waiting"),
    (JOB, {"turn": 1}, "Next"),
    (JOB, {"turn": 2}, "Number 2"),
    (JOB, {"turn": 1, "card": "Waits for a card"}, "Waits for a card"),
    (JOB, {"turn": 1, "card": "Waits for a card", "is_paused": True}, "Waiting until the queue is resumed"),
    (QUEUED, {"is_paused": True, "card": "Waits for a card"}, "No model. Get it."),
    (replace(JOB, state="paused"), {}, "Paused"),
    (replace(JOB, state="paused", message="Waits.", remedy="Go on."), SECTION, "Waits"),
    (replace(JOB, state="running"), {}, "Being made"),
    (RUNS, SECTION, "Section 2"),
    (RUNS, {}, "Being made"),
    (replace(RUNS, state="waiting"), SECTION, "Full. Free it."),
    (replace(JOB, state="waiting"), SECTION, "Section 2"),
    (replace(JOB, state="interrupted", message="Gone."), {}, "Interrupted: Gone."),
    (replace(JOB, state="failed", message="Gone.", remedy="Try."), {}, "Failed: Gone. Try."),
    (replace(JOB, state="finished"), {"is_paused": True, "card": "Waits"}, "Finished"),
    *(
        (RUNS, {"commands": commands.split(), **SECTION}, words)
        for commands, words in (
            ("change wait", "Section 2"), ("cancel", "Ending after the current work"),
            ("pause", "Pausing after the current step"), ("stop_after_section", "Ends after this section"),
            ("stop_after_section pause cancel", "Ending after the current work"),
            ("stop_after_section pause", "Pausing after the current step"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("job", "facts", "expected"), SENTENCES)
def test_a_sentence_says_why_a_job_stands_where_it_is(job: Job, facts: dict[str, Any], expected: str) -> None:
    assert sentence(job, **facts) == expected


def test_a_job_has_a_title_and_a_share_of_at_most_all() -> None:
    words = replace(JOB.request, prompt=" a\n red  ball ")
    assert title_of(replace(JOB, request=words)) == "a red ball"
    assert title_of(JOB) == "a video without a prompt"
    assert [share_done(replace(JOB, frames=frames)) for frames in (0, 73, 74)] == [0.0, 1.0, 1.0]


def test_a_record_tells_every_fact_of_a_job(sharing: Sharing) -> None:
    service = sharing.open(start=False)
    first, job = sharing.add(service, "before"), sharing.add(service, "a ball")
    service.steering.wait(job.id)
    facts = {
        "created": 10.0, "started": 20.5, "ended": 30.0, "place": 5.0, "frames": 7, "message": "Why.",
        "remedy": "Do.", "card": "W7900", "favourite": True, "video": "video-0007.mp4",
    }  # fmt: skip
    service.queue.store.enter(job.id, "running", reason="It is its turn.")
    service.queue.store.enter(job.id, "paused", **facts)
    service.steering.wait(job.id)
    made = full_record(service, job.id, lambda path: f"at {path.name}")
    request = made.pop("request")
    assert (request["prompt"], request["image"], request["end_image"]) == ("a ball", "at input.png", "")
    states = made.pop("states")
    assert [(line["state"], line["reason"]) for line in states] == [
        ("queued", "You started it."), ("running", "It is its turn."), ("paused", "Why."),
    ]  # fmt: skip
    place = facts.pop("place")
    assert made == facts | {
        "id": job.id, "state": "paused", "place": place, "video": "at video-0007.mp4", "damage": "",
        "folder": f"at {job.id}", "sentence": "Why", "percent": pytest.approx(100 * 7 / 37, abs=0.05),
        "actions": [name for name in EXPECTED["paused"].split() if name != "edit"], "jobs_before": 0,
        "wishes": ["wait"],
    }  # fmt: skip
    service.queue.pause_queue()
    assert full_record(service, first.id)["sentence"] == "Waiting until the queue is resumed"


@pytest.mark.parametrize("state", ["queued", "paused", "cancelled"])
def test_the_queue_refuses_what_is_not_offered(sharing: Sharing, state: JobState) -> None:
    service = sharing.open(start=False)
    job = sharing.add(service)
    if state == "paused":
        service.queue.store.enter(job.id, state, **PAUSED)
    elif state == "cancelled":
        assert service.queue.cancel(job.id)
    offered = ALLOWED[service.job(job.id).state]
    if "reorder" not in offered:
        with pytest.raises(InputError, match="expected one that waits in the queue"):
            service.queue.move(job.id)
    if "edit" not in offered:
        with pytest.raises(InputError, match="expected one that has not"):
            service.queue.edit(job.id, job.request)
    assert not service.queue.stop_after_section(job.id)
    assert service.queue.pause(job.id) == ("pause" in offered)
    assert service.queue.cancel(job.id) == ("cancel" in offered)


@pytest.mark.parametrize("script", sorted(SCRIPTS), ids=lambda path: path.name)
def test_no_script_names_a_state(script: Path) -> None:
    names = "|".join(STATES)
    quoted = rf"(['\"`])({names})\1"
    keys = rf"^\s*({names}): *[\['{{]|[{{,] *({names}): *[\['{{]"
    assert not re.search(f"{quoted}|{keys}", script.read_text(), re.MULTILINE)

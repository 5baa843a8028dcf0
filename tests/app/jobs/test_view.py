"""Tests that Python alone decides what a job's state allows, and that the queue refuses by the same rule."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from syrupy.assertion import SnapshotAssertion

import app.ui
from app.jobs.job import ALLOWED, TRANSITIONS, Action, Job, JobState
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
JOB = Job(
    id="20261123-101530-3f9a", state="queued", created=0.0, folder=Path("/o/20261123-101530-3f9a"),
    request=GenerationRequest(image="/o/p.png", seconds=2.4), frames=36,
)  # fmt: skip
TOLD = {"message": "Full.", "remedy": "Free it."}
FINISHING = GenerationRequest(prompt=" a\n red  ball ", video="/o/a.mp4", finish="source:96x64*90@30,speed:2")
VARIANTS: dict[str, dict[str, Any]] = {
    "new": {}, "begun": {"started": 1.0}, "told": TOLD, "damaged": {"damage": "request"},
    "a finishing": {"request": FINISHING},
}  # fmt: skip
ASKED = ("", "change wait", "pause", "stop_after_section", "stop_after_section pause", "cancel pause")
CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "nothing": {}, "next": {"turn": 1}, "second": {"turn": 2}, "a card": {"turn": 1, "card": "Waits"},
    "held": {"turn": 1, "card": "Waits", "is_paused": True}, "work": {"work": "Section 2"},
}  # fmt: skip


def shown(job: Job, commands: Any = (), section: int = 1, sections: int = 2, **more: Any) -> str:
    facts = view(job, commands, **more)
    on_stage = (
        f"{name}: {button['label']}{'' if button['enabled'] else ' (off)'}"
        for name, button in buttons(job, commands, section, sections).items()
    )
    lines = f"{facts['sentence']} | {facts['percent']} % | {', '.join(on_stage)}"
    return f"{lines} | {' '.join(facts['actions'])}"


@pytest.mark.parametrize("state", STATES)
def test_what_is_shown_of_a_job_in_each_state(state: JobState, snapshot: SnapshotAssertion) -> None:
    jobs = {name: replace(JOB, state=state, **facts) for name, facts in VARIANTS.items()}
    lines = [f"{name}: {title_of(job)} | {shown(job)}" for name, job in jobs.items()]
    lines += [f"in its row: {row_buttons(actions(jobs['new']))}"]
    texts = (jobs["new"], jobs["told"])
    for name, facts in CIRCUMSTANCES.items():
        lines.append(f"{name}: {' / '.join(sentence(job, **facts) for job in texts)}")
    for calls in ASKED if state == "running" else ():
        for sections in ((1, 1), (1, 2), (2, 2)):
            lines.append(f"asked to {calls}, {sections}: {shown(jobs['begun'], calls.split(), *sections)}")
    assert lines == snapshot


def test_names_of_states_and_shares() -> None:
    assert states_named(None) == []
    assert states_named(["paused", "failed"]) == ["paused", "failed"]
    with pytest.raises(InputError, match="'begun' is not a state; expected queued, running, waiting"):
        states_named(["paused", "begun"])
    assert [share_done(replace(JOB, frames=frames)) for frames in (0, 73, 74)] == [0.0, 1.0, 1.0]


def test_the_rule_agrees_with_the_changes_that_a_state_can_have() -> None:
    assert ALLOWED.keys() == TRANSITIONS.keys() == WORDS.keys() == set(STATES)
    ends: dict[Action, JobState] = {"cancel": "cancelled", "pause": "paused", "resume": "queued"}
    for state in STATES:
        for action, after in ends.items():
            assert action not in ALLOWED[state] or after in TRANSITIONS[state], (state, action)


def test_a_record_tells_every_fact_of_a_job(sharing: Sharing) -> None:
    service = sharing.open(start=False)
    first, job = sharing.add(service, "before"), sharing.add(service, "a ball")
    facts = {
        "created": 10.0, "started": 20.5, "ended": 30.0, "place": 5.0, "frames": 7, "message": "Why.",
        "remedy": "Do.", "card": "W7900", "favourite": True, "video": "video-0007.mp4",
    }  # fmt: skip
    service.queue.store.enter(job.id, "running", reason="It is its turn.")
    service.queue.store.enter(job.id, "paused", **facts)
    for command in ("wait", "change"):
        service.queue.store.leave_command(job.id, command)
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
        "actions": [name for name in ALLOWED["paused"] if name != "edit"], "jobs_before": 0,
        "wishes": ["change", "wait"],
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

"""Tests that Python alone decides what a job's state allows, and that the queue refuses by the same rule."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import app.ui
from app.jobs.job import ALLOWED, COMMANDS, TRANSITIONS, Action, Command, Job, JobState, allows
from app.jobs.storage.commands import PAUSED
from app.jobs.view import WORDS, actions, buttons, sentence, view
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


@pytest.mark.parametrize("command", COMMANDS[:3])
def test_what_was_asked_is_said_and_not_offered_again(command: Command) -> None:
    job = replace(JOB, state="running", started=1.0)
    words = {
        "cancel": "Ending after the current work", "pause": "Pausing after the current step",
        "stop_after_section": "Ends after this section",
    }  # fmt: skip
    given: set[Command] = {command}
    assert sentence(job, given) == words[command]
    assert actions(job, given) == ["watch", "cancel", "duplicate", "branch", "change", "wait"]
    shown = buttons(job, given, 1, 2)
    assert list(shown) == ([] if command == "cancel" else [command])
    assert not any(one["enabled"] for one in shown.values())


def test_steering_takes_no_button_away() -> None:
    job = replace(JOB, state="running", started=1.0)
    assert actions(job, {"change", "wait"}) == EXPECTED["running"].split()
    assert sentence(job, {"change", "wait"}, work="Section 2") == "Section 2"


def test_the_stage_has_the_buttons_of_a_state() -> None:
    job = replace(JOB, state="running", started=1.0)
    assert [(name, one["enabled"]) for name, one in buttons(job, (), 1, 2).items()] == [
        ("pause", True), ("stop_after_section", True),
    ]  # fmt: skip
    assert not buttons(job, (), 2, 2)["stop_after_section"]["enabled"]
    assert list(buttons(job, (), 1, 1)) == ["pause"]
    for state in STATES:
        assert ("resume" in buttons(replace(JOB, state=state), (), 0, 2)) == ("resume" in ALLOWED[state])


def test_the_sentences_of_a_job_in_the_queue() -> None:
    assert [sentence(JOB, turn=turn) for turn in range(3)] == ["Waiting", "Next", "Number 2"]
    assert sentence(JOB, is_paused=True, turn=1) == "Waiting until the queue is resumed"
    waiting = replace(JOB, message="No model.", remedy="Get it.")
    assert sentence(waiting, is_paused=True) == "No model. Get it."
    assert sentence(replace(JOB, state="paused")) == "Paused"
    assert sentence(replace(JOB, state="paused", message="Waits.")) == "Waits"
    assert sentence(replace(JOB, state="interrupted", message="Gone.")) == "Interrupted: Gone."
    assert sentence(replace(JOB, state="waiting", message="Full.")) == "Full."


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

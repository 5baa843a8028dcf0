"""One view of a job for everyone who shows it: its facts, its state in words, and what it allows now.

The queue refuses by the same table, so a button that is offered and a call that is refused cannot differ.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from app.jobs.job import ALLOWED, Action, Command, Job, JobState, allows
from app.jobs.service import JobService
from diffusers_helper.conditions.pictures import picture_paths
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.models.registry import plan_of
from diffusers_helper.picture_names import with_pictures
from diffusers_helper.request import GenerationRequest

Address = Callable[[Path], str]


class StateWords(NamedTuple):
    """The texts for a state: its name, that on the stage, the sentence said when a job rests in it."""

    label: str
    headline: str = ""
    ending: str = ""
    title: str = ""


WORDS: dict[JobState, StateWords] = {
    "queued": StateWords("In the queue"),
    "running": StateWords("Being made"),
    "waiting": StateWords("Waiting", "Waiting"),
    "paused": StateWords("Paused", "Paused", "The video is paused", "Paused"),
    "interrupted": StateWords("Interrupted", "Interrupted", "The video was interrupted", "Interrupted"),
    "finished": StateWords("Finished", "Finished", "The video is finished", "Done"),
    "failed": StateWords("Failed", "Failed", "The video has failed", "Failed"),
    "cancelled": StateWords("Ended early", "Ended", "The video was ended", "Ended"),
}
# A video that waits for its turn is in the Queue tab; in the history it would only hide those that exist.
GROUPS: dict[str, tuple[JobState, ...]] = {
    "All videos": tuple(state for state in ALLOWED if state != "queued"),
    "Finished": ("finished",),
    "Not finished": ("running", "waiting", "paused", "interrupted"),
    "Failed": ("failed",),
    "Ended early": ("cancelled",),
    "In the queue": ("queued",),
}
# The buttons of a row in the queue: those in sight, those behind "More", and those that move it, also there.
_SHOWN: dict[str, str] = {
    "edit": "Edit", "resume": "Resume", "pause": "Pause", "stop_after_section": "Stop after this section",
    "remove": "Remove",
}  # fmt: skip
_HIDDEN = {"watch": "Watch it", "duplicate": "Duplicate", "cancel": "End it now"}
_OF_FINISHING = "prompt", "seed", "crf", "then"  # the settings that a finishing has besides its steps
_MOVES = {
    "first": "Make it the next one", "earlier": "Earlier", "later": "Later", "last": "Make it the last one",
}  # fmt: skip
_REQUESTED: dict[Command, str] = {
    "cancel": "Ending after the current work", "pause": "Pausing after the current step",
    "stop_after_section": "Ends after this section",
}  # fmt: skip
_BUTTONS: dict[Action, str] = {
    "resume": "Resume", "pause": "Pause Generation", "stop_after_section": "Stop after this section",
    "cancel": "End it here",
}  # fmt: skip


def states_named(names: Collection[str] | None) -> list[JobState]:
    for state in names or ():
        if state not in ALLOWED:
            expected = ", ".join(ALLOWED)
            raise InputError(f"{short_repr(state)} is not a state; expected {expected}.", "Correct `states`.")
    return cast(list[JobState], list(names or ()))


def actions(job: Job, commands: Collection[Command] = ()) -> list[Action]:
    # An interrupted job can be paused as well, but only its end or its continuation is worth a button.
    is_ending = not _REQUESTED.keys().isdisjoint(commands)
    left_out = ("pause", "stop_after_section") if is_ending or "resume" in ALLOWED[job.state] else ()
    return [action for action in ALLOWED[job.state] if action not in left_out and allows(job, action)]


def sentence(
    job: Job,
    commands: Collection[Command] = (),
    *,
    is_paused: bool = False,
    turn: int = 0,
    work: str = "",
    card: str = "",
) -> str:
    """Describe a job's state for a user.

    Args:
        commands: The commands of users for it, if it is being made.
        turn: Its number among the jobs that will begin; 0 if that is not known.
        work: What is done now for a running job, if that is known.
        card: Why a queued job waits for another card than the next free one; "" if it does not.
    """
    if asked := [words for command, words in _REQUESTED.items() if command in commands]:
        return asked[0]
    reason = f"{job.message} {job.remedy}".strip()
    if job.state == "queued":
        turns = {0: "Waiting", 1: "Next"}
        if reason or is_paused:
            return reason or "Waiting until the queue is resumed"
        return card or turns.get(turn, f"Number {turn}")
    if job.state == "paused":
        return job.message.rstrip(".") or "Paused"
    if job.state == "running" or not reason:
        return work or WORDS[job.state].label
    return reason if job.state == "waiting" else f"{WORDS[job.state].label}: {reason}"


def title_of(job: Job) -> str:
    finishing = job.request.finishing
    return " ".join(job.request.prompt.split()) or (
        finishing.summary if finishing else "a video without a prompt"
    )


def shown_settings(request: GenerationRequest, values: dict[str, Any]) -> dict[str, Any]:
    """Keep of a request's settings those that say what a job makes: all, or those of a finishing."""
    if request.finishing:
        return {name: values[name] for name in _OF_FINISHING} | {"finish": request.finishing.words}
    return values


def share_done(job: Job) -> float:
    if job.state == "finished":
        return 1.0
    return min(1.0, job.frames / _frames(job.request))


@lru_cache(maxsize=1024)
def _frames(request: GenerationRequest) -> int:
    return plan_of(request).total_frames


def view(job: Job, commands: Collection[Command] = (), **more: Any) -> dict[str, Any]:
    return {
        "sentence": sentence(job, commands, **more),
        "percent": round(100 * share_done(job), 1),
        "actions": actions(job, commands),
    }


def buttons(
    job: Job, commands: Collection[Command], section: int, sections: int
) -> dict[str, dict[str, Any]]:
    """Describe the buttons of the job on the stage, by action: each has a `label`, and may be `enabled`."""
    entries: dict[str, dict[str, Any]] = {}
    if "cancel" not in commands and "pause" in commands:
        entries["pause"] = {"label": "Pausing …", "enabled": False}
    elif "cancel" not in commands and "stop_after_section" in commands:
        entries["stop_after_section"] = {"label": _REQUESTED["stop_after_section"], "enabled": False}
    for action in actions(job, commands):
        if action == "cancel" and "resume" not in ALLOWED[job.state]:  # the button beside Start ends it
            continue
        if action in _BUTTONS and (action != "stop_after_section" or sections > 1):
            ready = action != "stop_after_section" or section < sections
            entries[action] = {"label": _BUTTONS[action], "enabled": ready}
    return entries


def row_buttons(allowed: Collection[Action]) -> dict[str, list[tuple[str, str]]]:
    def offered(labels: dict[str, str]) -> list[tuple[str, str]]:
        return [(name, label) for name, label in labels.items() if name in allowed]

    more = offered(_HIDDEN)
    if "reorder" in allowed:  # Remove ends it, too
        more = [*_MOVES.items(), *(button for button in more if button[0] != "cancel")]
    return {"shown": offered(_SHOWN), "more": more}


def record(job: Job, address: Address = str) -> dict[str, Any]:
    pictures = {name: address(Path(path)) for name, path in picture_paths(job.request).items()}
    return {
        "id": job.id, "state": job.state, "place": job.position, "created": job.created,
        "started": job.started, "ended": job.ended,
        "video": None if job.video is None else address(job.video), "frames": job.frames,
        "message": job.message, "remedy": job.remedy, "card": job.card, "favourite": job.favourite,
        "damage": job.damage, "folder": address(job.folder),
        "request": with_pictures(json.loads(job.request.to_json()), pictures),
    }  # fmt: skip


def full_record(service: JobService, job_id: str, address: Address = str) -> dict[str, Any]:
    job = service.job(job_id)
    commands = service.commands(job)
    facts = {
        "jobs_before": service.queue_position(job_id),
        "wishes": sorted(commands),
        "states": [asdict(transition) for transition in service.history.transitions(job_id)],
    }
    return record(job, address) | view(job, commands, is_paused=service.queue.is_paused) | facts

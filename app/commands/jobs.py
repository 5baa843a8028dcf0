"""The command `jobs`, which lists and changes the jobs of a folder, even while a program makes them."""

import argparse
import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, get_args

from app.commands.arguments import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    Commands,
    add_outputs,
    add_request,
    add_settings,
    add_verbs,
    argument,
    command_for,
    command_words,
    error_line,
    exclusive,
    queue_paused,
    settings_from,
    switch,
)  # fmt: skip
from app.commands.export import CODEC, export_video
from app.jobs.job import ALLOWED, Action, Job, JobState, NotAllowed, allows
from app.jobs.service import JobService
from app.jobs.stdio import complain, say
from app.jobs.view import full_record, record, shown_settings
from diffusers_helper.errors import INPUT_CODES, InputError, LongtakeError
from diffusers_helper.files import expanded_path
from diffusers_helper.provenance.branch import may_differ
from diffusers_helper.request import SETTINGS
from diffusers_helper.units import count_text, size_text

_EXIT_CODES = (
    "exit codes: 0 done, 1 the job's state does not allow the change, 2 the command is invalid or names a\n"
    "job that does not exist. Of several jobs, each is tried, and the highest code counts."
)
_NO_MAKER = (
    "No program makes jobs in this folder now. Unless one waits for this job, start the page, or run: {}"
)
_INTERRUPTED = "An interrupted job continues when the page is started on this folder, or with: {}"
_WORDS = 48  # characters of a prompt in a list
_MOST_LISTED = 10**9
Verb = Callable[[JobService, argparse.Namespace], int]


def add_jobs(commands: Commands) -> None:
    verbs = [(name, text, partial(_run, verb), *arguments) for name, text, verb, *arguments in VERBS]
    add_verbs(
        commands, "jobs", verbs, add_outputs, switch("--json", "print JSON, one object per line"),
        description="List and change the jobs of an outputs folder, even while a program makes them.",
        epilog=_EXIT_CODES,
    )  # fmt: skip


def _run(verb: Verb, arguments: argparse.Namespace) -> int:
    outputs = expanded_path(arguments.outputs, "outputs")
    service = JobService(outputs)
    if outputs.is_dir():
        service.recover()
    elif verb is not _add:
        raise InputError(f"There is no outputs folder {outputs}.", "Give an existing folder as `outputs`.")
    return verb(service, arguments)


def report(arguments: argparse.Namespace, job: Job, text: str, **more: Any) -> None:
    say(json.dumps({**record(job), **more}) if arguments.json else command_words(text))


def _line(job: Job) -> str:
    finishing = job.request.finishing
    steps = f"{finishing.summary}: " if finishing else ""
    prompt = " ".join((job.message if job.damage else f"{steps}{job.request.prompt}").split())
    prompt = prompt if job.damage or len(prompt) <= _WORDS else f"{prompt[: _WORDS - 1]}…"
    star = "*" if job.favourite else " "
    state = "damaged" if job.damage else job.state
    seconds = finishing.result.seconds if finishing else job.request.seconds
    length = "picture" if job.request.one_frame else f"{seconds:5.1f} s"
    return f"{job.id} {star} {state:<11} {length}  {prompt}"


def _list(service: JobService, arguments: argparse.Namespace) -> int:
    if not 0 < arguments.limit <= _MOST_LISTED:
        raise InputError(f"--limit is {arguments.limit}; expected a number from 1 to {_MOST_LISTED}.")
    if arguments.queue:
        jobs = service.queue.jobs(limit=arguments.limit)
    else:
        jobs = service.history.search(
            arguments.text, states=arguments.state, favourites=arguments.favourites, limit=arguments.limit
        ).jobs
    for job in jobs:
        report(arguments, job, _line(job))
    if not arguments.json and any(job.state == "interrupted" for job in jobs):
        complain(_INTERRUPTED.format(command_for(arguments.outputs, "generate", "--resume", "JOB")))
    if not arguments.json and service.queue.is_paused:
        complain(queue_paused(arguments.outputs))
    return 0


def _show(service: JobService, arguments: argparse.Namespace) -> int:
    job = service.job(arguments.jobs[0])
    details = full_record(service, job.id)
    lines = [f"{job.id}: {job.state}", f"{job.message} {job.remedy}".strip()]
    lines += [f"Video: {job.video} ({count_text(job.frames, 'frame')})"] if job.video else []
    if job.state == "queued":
        lines.append(f"Jobs before it: {details['jobs_before']}")
        lines += [queue_paused(arguments.outputs)] if service.queue.is_paused else []
    lines += [
        f"{SETTINGS[name].label}: {SETTINGS[name].display(value)}"
        for name, value in shown_settings(job.request, details["request"]).items()
        if name in SETTINGS and value is not None
    ]
    lines += [
        f"{datetime.fromtimestamp(row['time']):%Y-%m-%d %H:%M:%S} {row['state']}. {row['reason']}".rstrip()
        for row in details["states"]
    ]
    say(*([json.dumps(details)] if arguments.json else map(command_words, filter(None, lines))))
    return 0


def _add(service: JobService, arguments: argparse.Namespace) -> int:
    # Here and below, these take half a second to import, which a list need not wait for.
    from app.commands.origin import request_of
    from app.commands.plan import tell_times

    request = request_of(arguments)
    tell_times(request)
    job = service.queue.add(request, allow_folder=True, waits=arguments.wait)
    return _queued(service, arguments, job)


def _queued(service: JobService, arguments: argparse.Namespace, job: Job, more: str = "") -> int:
    has_maker = service.queue.store.has_maker
    hint = ""
    if job.state == "queued" and service.queue.is_paused:
        hint = queue_paused(arguments.outputs)
    elif not (has_maker or job.is_over):
        hint = _NO_MAKER.format(command_for(arguments.outputs, "generate", "--resume", job.id))
    reported = filter(None, (f"{job.id}: {job.state}", more.rstrip("."), hint))
    report(arguments, job, ". ".join(reported), has_maker=has_maker)
    return 0


def _each(act: Callable[[JobService, argparse.Namespace, str], object]) -> Verb:
    """Make a verb that does something to each of the named jobs; one that refuses keeps no other from it.

    Its exit code is the highest that one of the jobs would have alone.
    """

    def verb(service: JobService, arguments: argparse.Namespace) -> int:
        code = 0
        for job_id in dict.fromkeys(arguments.jobs):
            try:
                act(service, arguments, job_id)
            except LongtakeError as error:
                is_invalid = error.code in INPUT_CODES
                if isinstance(error, NotAllowed):
                    is_invalid = False
                    report(arguments, error.job, f"{job_id}: {error.job.state}", asked=False)
                complain(error_line(error))
                code = max(code, EXIT_BAD_INPUT if is_invalid else EXIT_FAILED)
        return code

    return verb


def _check_allowed(job: Job, action: Action) -> None:
    states = [state for state, actions in ALLOWED.items() if action in actions]
    if job.state not in states:
        raise NotAllowed(job, f"one that is {', '.join(states[:-1])} or {states[-1]}")


def _ask(action: Action, service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    before = service.job(job_id)
    accepted: bool = getattr(service.queue, action)(job_id)
    if not accepted:
        _check_allowed(before, action)
    job = service.job(job_id)
    asked_for = sorted(service.commands(job))
    suffix = f", asked to {' and '.join(asked_for).replace('_', ' ')}" if asked_for else ""
    report(arguments, job, f"{job.id}: {job.state}{suffix}", asked=accepted)


@_each
def _cancel(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    _ask("stop_after_section" if arguments.after_section else "cancel", service, arguments, job_id)


def _is_for_all(arguments: argparse.Namespace) -> bool:
    if not (arguments.all or arguments.jobs):
        raise InputError("No job is named; expected the ids of jobs, or --all.")
    return arguments.all


def _report_queue(arguments: argparse.Namespace, is_paused: bool) -> None:
    text = queue_paused(arguments.outputs) if is_paused else "The queue of this folder is not paused."
    say(json.dumps({"is_paused": is_paused}) if arguments.json else text)


def _pause(service: JobService, arguments: argparse.Namespace) -> int:
    if _is_for_all(arguments):
        service.queue.pause_queue()
        _report_queue(arguments, is_paused=True)
    return _each(partial(_ask, "pause"))(service, arguments)


def _resume(service: JobService, arguments: argparse.Namespace) -> int:
    if _is_for_all(arguments):
        service.queue.resume_queue()
        _report_queue(arguments, is_paused=False)
    return _queue_again(service, arguments)


def _retry(service: JobService, arguments: argparse.Namespace) -> int:
    if _is_for_all(arguments):
        ended = service.history.search("", states=["failed", "cancelled"], limit=_MOST_LISTED).jobs
        arguments.jobs += [job.id for job in reversed(ended) if allows(job, "retry")]
        if not arguments.jobs:
            complain("No job of this folder has failed or was cancelled.")
    return _queue_again(service, arguments)


@_each
def _queue_again(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    before = service.job(job_id)
    was_pausing = "pause" in service.commands(before)
    if allows(before, "resume"):
        from app.commands.origin import check_changes_of

        check_changes_of(service, job_id)
    job = service.steering.resume(job_id)
    if not was_pausing:
        _check_allowed(before, "resume")
    _queued(service, arguments, job)


@_each
def _branch(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    from app.commands.origin import queue_branch

    changes = settings_from(arguments)
    _queued(service, arguments, *queue_branch(service, job_id, arguments, changes, waits=False))


@_each
def _change(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    from app.commands.origin import check_changes_of

    changes = settings_from(arguments)
    check_changes_of(service, job_id, changes)
    job = service.steering.change(job_id, changes)
    _queued(service, arguments, job, "What comes next has the new settings")


@_each
def _wait(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    job = service.steering.wait(job_id, not arguments.off)
    behaviour = "goes on by itself" if arguments.off else "waits for you after each section"
    report(arguments, job, f"{job.id}: {job.state}, {behaviour}")


@_each
def _takes(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    for job in service.steering.takes(job_id, arguments.count, arguments.keep):
        _queued(service, arguments, job, f"Seed {job.request.seed}, one section; resume the one to keep")


@_each
def _reorder(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    if arguments.first:
        job = service.queue.move_first(job_id)
    else:
        job = service.queue.move(job_id, before=arguments.before, after=arguments.after)
    report(arguments, job, f"{job.id}: {count_text(service.queue_position(job.id), 'job')} before it")


@_each
def _remove(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    job = service.job(job_id)
    _check_allowed(job, "remove")
    service.queue.remove(job_id)
    command = command_for(arguments.outputs, "jobs", "restore", job_id)
    report(arguments, job, f"{job_id}: removed. For a week, it can be restored with: {command}")


@_each
def _restore(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    job = service.queue.restore(job_id)
    report(arguments, job, f"{job.id}: {job.state}")


@_each
def _delete(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    service.queue.delete(job_id)
    say(json.dumps({"id": job_id}) if arguments.json else f"{job_id}: deleted")


def _empty_trash(service: JobService, arguments: argparse.Namespace) -> int:
    deleted = service.queue.empty_trash()
    text = f"Deleted: {count_text(len(deleted), 'job')}"
    say(json.dumps({"deleted": deleted}) if arguments.json else text)
    return 0


def _usage(service: JobService, arguments: argparse.Namespace) -> int:
    usage = service.history.usage()
    for job, size in usage.jobs:
        report(arguments, job, f"{size_text(size):>11}  {_line(job)}", bytes=size)
    rest = {"removed_bytes": usage.removed_bytes, "free_bytes": usage.free_bytes}
    empty = command_for(arguments.outputs, "jobs", "empty-trash")
    text = f"{size_text(usage.removed_bytes):>11}  removed jobs; delete them for good with: {empty}"
    lines = [text, f"{size_text(usage.free_bytes):>11}  free"]
    say(*([json.dumps(rest)] if arguments.json else lines))
    return 0


def _rebuild(service: JobService, arguments: argparse.Namespace) -> int:
    service.queue.rebuild()
    count = service.history.count()
    say(json.dumps({"jobs": count}) if arguments.json else f"Jobs in the folder: {count}")
    return 0


@_each
def _export(service: JobService, arguments: argparse.Namespace, job_id: str) -> None:
    job = service.job(job_id)
    target = export_video(job, expanded_path(arguments.to, "to"), arguments.codec)
    report(arguments, job, str(target), exported=str(target))


def _add_changes(parser: argparse._ActionsContainer) -> None:
    add_settings(parser, excluded=[name for name in SETTINGS if name not in may_differ()])


_JOB = argument("jobs", nargs=1, metavar="JOB", help="the id of a job")
_JOBS = argument("jobs", nargs="+", metavar="JOB", help="the id of a job")
_OR_ALL = (
    argument("jobs", nargs="*", metavar="JOB", help="the id of a job"),
    switch("--all", "do this for the whole queue"),
)
_OR_ALL_ENDED = (_OR_ALL[0], switch("--all", "do this for all failed and cancelled jobs"))
_LIST = (
    argument("text", nargs="?", default="", metavar="WORDS", help="words that the prompt must contain"),
    argument("--state", action="append", default=[], choices=get_args(JobState), help="keep only this state"),
    switch("--favourites", "keep only favourites"),
    switch("--queue", "list only jobs that are not over, in the queue's order"),
    argument("--limit", type=int, default=50, metavar="N", help="list at most N jobs (default: 50)"),
)
_BRANCH = (
    _JOB,
    exclusive(
        argument("--keep", type=int, metavar="N", help="keep the N sections that were made first"),
        argument("--longer", type=float, metavar="SECONDS", help="make a finished video longer"),
    ),
    _add_changes,
)
_TAKES = (
    _JOB,
    argument("--count", type=int, default=3, metavar="N", help="the number of takes (default: 3)"),
    argument("--keep", type=int, metavar="N", help="keep the N sections that were made first (default: all)"),
)
_REORDER = (
    _JOB,
    exclusive(
        argument("--before", metavar="OTHER", help="move it before this job"),
        argument("--after", metavar="OTHER", help="move it after this job"),
        switch("--first", "make it the next job to begin"),
        switch("--last", "move it to the end"),
    ),
)
_TO = argument(
    "--to", required=True, metavar="PATH", help="the folder, or the file, in any format of `export`"
)
_AFTER_SECTION = switch("--after-section", "finish the current section first")
_OFF = switch("--off", "let them go on by themselves again")
VERBS = (
    ("list", "list jobs, the newest first", _list, *_LIST),
    ("show", "show everything about a job", _show, _JOB),
    ("add", "put a new job into the queue, without waiting for it", _add, add_request),
    ("cancel", "end jobs; their videos so far are kept", _cancel, _JOBS, _AFTER_SECTION),
    ("pause", "pause jobs until they are resumed, and free the device's memory", _pause, *_OR_ALL),
    ("resume", "continue paused or interrupted jobs", _resume, *_OR_ALL),
    ("retry", "queue failed or cancelled jobs again", _retry, *_OR_ALL_ENDED),
    ("branch", "queue a job that keeps sections of another one", _branch, *_BRANCH),
    ("change", "change what comes next in a video that is being made", _change, _JOB, _add_changes),
    ("wait", "pause jobs after each of their sections", _wait, _JOBS, _OFF),
    ("takes", "make the next section several times, to choose one", _takes, *_TAKES),
    ("reorder", "move a job within the queue", _reorder, *_REORDER),
    ("remove", "remove jobs with their files; they can be restored for a week", _remove, _JOBS),
    ("restore", "restore removed jobs", _restore, _JOBS),
    ("delete", "delete jobs for good, removed ones included; this frees space at once", _delete, _JOBS),
    ("empty-trash", "delete all removed jobs for good", _empty_trash),
    ("usage", "show how much space each job takes, the largest first", _usage),
    ("rebuild", "read all jobs anew from their folders", _rebuild),
    ("export", "write the video of a job to another place", _export, _JOB, _TO, CODEC),
)

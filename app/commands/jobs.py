"""The command `jobs`, which lists and changes the jobs of a folder, even while a program makes them."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from app.commands.arguments import (
    EXIT_FAILED,
    Parser,
    add_outputs,
    add_request,
    add_settings,
    add_verbs,
    argument,
    as_typed,
    command_words,
    exclusive,
    settings_from,
    switch,
)  # fmt: skip
from app.commands.origin import check_changes_of, queue_branch, request_of
from app.commands.plan import tell_times
from app.jobs.job import Job, JobState, allows
from app.jobs.service import JobService
from app.jobs.stdio import complain, say
from app.jobs.view import full_record, record
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path, replacing
from diffusers_helper.provenance.branch import may_differ
from diffusers_helper.request import SETTINGS
from diffusers_helper.units import count_text, size_text

_EXIT_CODES = (
    "exit codes: 0 done, 1 the job's state does not allow the change, 2 the command is invalid or names a\n"
    "job that does not exist."
)
_RESUME = "python -m app generate --resume {} --outputs {}"
_NO_MAKER = (
    "No program makes jobs in this folder now. Unless one waits for this job, start the page, or run: "
    f"{_RESUME}"
)
_INTERRUPTED = f"An interrupted job continues when the page is started on this folder, or with: {_RESUME}"
_WORDS = 48  # characters of a prompt in a list
_MOST_LISTED = 10**9


def add_jobs(commands: argparse._SubParsersAction[Parser]) -> None:
    verbs = [(name, text, partial(_run, verb), *arguments) for name, text, verb, *arguments in VERBS]
    add_verbs(
        commands, "jobs", verbs, add_outputs, switch("--json", "print JSON, one object per line"),
        help="list and change the jobs of an outputs folder, even while a program makes them",
        epilog=_EXIT_CODES,
    )  # fmt: skip


def _run(verb: Callable[[JobService, argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    outputs = expanded_path(arguments.outputs, "outputs")
    service = JobService(outputs)
    if outputs.is_dir():
        service.recover()
    elif verb is not _add:
        raise InputError(f"There is no outputs folder {outputs}.", "Give an existing folder as `outputs`.")
    return verb(service, arguments)


def report(arguments: argparse.Namespace, job: Job, text: str, **more: Any) -> None:
    """Print a job, either as JSON together with `more`, or as the given text."""
    say(json.dumps({**record(job), **more}) if arguments.json else command_words(text))


def _line(job: Job) -> str:
    prompt = " ".join((job.message if job.damage else job.request.prompt).split())
    prompt = prompt if job.damage or len(prompt) <= _WORDS else f"{prompt[: _WORDS - 1]}…"
    star = "*" if job.favourite else " "
    state = "damaged" if job.damage else job.state
    length = "picture" if job.request.one_frame else f"{job.request.seconds:5.1f} s"
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
        complain(as_typed(_INTERRUPTED.format("JOB", shlex.quote(str(arguments.outputs)))))
    return 0


def _show(service: JobService, arguments: argparse.Namespace) -> int:
    job = service.job(arguments.job)
    details = full_record(service, arguments.job)
    lines = [f"{job.id}: {job.state}", f"{job.message} {job.remedy}".strip()]
    lines += [f"Video: {job.video} ({job.frames} frames)"] if job.video else []
    if job.state == "queued":
        lines.append(f"Jobs before it: {details['jobs_before']}")
    lines += [
        f"{SETTINGS[name].label}: {SETTINGS[name].display(value)}"
        for name, value in details["request"].items()
        if name in SETTINGS and value is not None
    ]
    lines += [f"{_clock(row['time'])} {row['state']}. {row['reason']}".rstrip() for row in details["states"]]
    say(*([json.dumps(details)] if arguments.json else map(command_words, filter(None, lines))))
    return 0


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _add(service: JobService, arguments: argparse.Namespace) -> int:
    request = request_of(arguments)
    tell_times(request)
    job = service.queue.add(request, allow_folder=True, waits=arguments.wait)
    return _queued(service, arguments, job)


def _queued(service: JobService, arguments: argparse.Namespace, job: Job, more: str = "") -> int:
    has_maker = service.queue.store.has_maker
    hint = "" if has_maker or job.is_over else _NO_MAKER.format(job.id, shlex.quote(str(arguments.outputs)))
    reported = filter(None, (f"{job.id}: {job.state}", more.rstrip("."), hint))
    report(arguments, job, ". ".join(reported), has_maker=has_maker)
    return 0


def _cancel(service: JobService, arguments: argparse.Namespace) -> int:
    ask = service.queue.stop_after_section if arguments.after_section else service.queue.cancel
    return _each(service, arguments, ask)


def _is_for_all(arguments: argparse.Namespace) -> bool:
    if not (arguments.all or arguments.jobs):
        raise InputError("No job is named; expected the ids of jobs, or --all.")
    return arguments.all


def _pause(service: JobService, arguments: argparse.Namespace) -> int:
    if _is_for_all(arguments):
        service.queue.pause_queue()
    return _each(service, arguments, service.queue.pause)


def _each(service: JobService, arguments: argparse.Namespace, ask: Callable[[str], bool]) -> int:
    """Call `ask` for each job and print the result; return 1 as the exit code if one was refused."""
    all_accepted = True
    for job_id in arguments.jobs:
        service.job(job_id)
        accepted = ask(job_id)
        job = service.job(job_id)
        asked_for = sorted(service.commands(job))
        suffix = f", asked to {' and '.join(asked_for).replace('_', ' ')}" if asked_for else ""
        report(arguments, job, f"{job.id}: {job.state}{suffix}", asked=accepted)
        all_accepted = all_accepted and accepted
    return 0 if all_accepted else EXIT_FAILED


def _resume(service: JobService, arguments: argparse.Namespace) -> int:
    if _is_for_all(arguments):
        service.queue.resume_queue()
    for job_id in arguments.jobs:
        is_resumable = allows(service.job(job_id), "resume")
        if is_resumable:
            check_changes_of(service, job_id)
        job = service.steering.resume(job_id)
        _queued(service, arguments, job)
        if not is_resumable:
            return EXIT_FAILED
    return 0


def _branch(service: JobService, arguments: argparse.Namespace) -> int:
    changes = settings_from(arguments)
    return _queued(service, arguments, *queue_branch(service, arguments.job, arguments, changes, waits=False))


def _change(service: JobService, arguments: argparse.Namespace) -> int:
    changes = settings_from(arguments)
    check_changes_of(service, arguments.job, changes)
    job = service.steering.change(arguments.job, changes)
    return _queued(service, arguments, job, "What comes next has the new settings")


def _wait(service: JobService, arguments: argparse.Namespace) -> int:
    for job_id in arguments.jobs:
        job = service.steering.wait(job_id, not arguments.off)
        behaviour = "goes on by itself" if arguments.off else "waits for you after each section"
        report(arguments, job, f"{job.id}: {job.state}, {behaviour}")
    return 0


def _takes(service: JobService, arguments: argparse.Namespace) -> int:
    for job in service.steering.takes(arguments.job, arguments.count, arguments.keep):
        _queued(service, arguments, job, f"Seed {job.request.seed}, one section; resume the one to keep")
    return 0


def _reorder(service: JobService, arguments: argparse.Namespace) -> int:
    if arguments.first:
        job = service.queue.move_first(arguments.job)
    else:
        job = service.queue.move(arguments.job, before=arguments.before, after=arguments.after)
    report(arguments, job, f"{job.id}: {count_text(service.queue_position(job.id), 'job')} before it")
    return 0


def _remove(service: JobService, arguments: argparse.Namespace) -> int:
    for job_id in arguments.jobs:
        job = service.job(job_id)
        service.queue.remove(job_id)
        command = f"python -m app jobs restore {job_id} --outputs {shlex.quote(str(arguments.outputs))}"
        report(arguments, job, f"{job_id}: removed. For a week, it can be restored with: {command}")
    return 0


def _restore(service: JobService, arguments: argparse.Namespace) -> int:
    for job_id in arguments.jobs:
        job = service.queue.restore(job_id)
        report(arguments, job, f"{job.id}: {job.state}")
    return 0


def _delete(service: JobService, arguments: argparse.Namespace) -> int:
    for job_id in arguments.jobs:
        service.queue.delete(job_id)
        say(json.dumps({"id": job_id}) if arguments.json else f"{job_id}: deleted")
    return 0


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
    empty = f"python -m app jobs empty-trash --outputs {shlex.quote(str(arguments.outputs))}"
    text = f"{size_text(usage.removed_bytes):>11}  removed jobs; delete them for good with: {empty}"
    lines = [command_words(text), f"{size_text(usage.free_bytes):>11}  free"]
    say(*([json.dumps(rest)] if arguments.json else lines))
    return 0


def _rebuild(service: JobService, arguments: argparse.Namespace) -> int:
    service.queue.rebuild()
    count = service.history.count()
    say(json.dumps({"jobs": count}) if arguments.json else f"Jobs in the folder: {count}")
    return 0


def _export(service: JobService, arguments: argparse.Namespace) -> int:
    job = service.job(arguments.job)
    if job.video is None or not job.video.exists():
        raise InputError(
            f"Job {job.id} has no video yet; expected one with a video.", "Wait for its first section."
        )
    target = Path(arguments.to).expanduser()
    target = target / f"{job.id}{job.video.suffix}" if target.is_dir() else target
    try:
        with replacing(target) as temporary:
            shutil.copyfile(job.video, temporary)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror}); expected a new file or a folder.",
            "Choose another --to.",
        ) from error
    report(arguments, job, str(target), exported=str(target))
    return 0


def _add_changes(parser: argparse._ActionsContainer) -> None:
    add_settings(parser, excluded=[name for name in SETTINGS if name not in may_differ()])


_JOB = argument("job", metavar="JOB", help="the id of a job")
_JOBS = argument("jobs", nargs="+", metavar="JOB", help="the id of a job")
_OR_ALL = (
    argument("jobs", nargs="*", metavar="JOB", help="the id of a job"),
    switch("--all", "do this for the whole queue"),
)
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
_TO = argument("--to", required=True, metavar="PATH", help="the file or folder to copy the video to")
_AFTER_SECTION = switch("--after-section", "finish the current section first")
_OFF = switch("--off", "let them go on by themselves again")
VERBS = (
    ("list", "list jobs, the newest first", _list, *_LIST),
    ("show", "show everything about a job", _show, _JOB),
    ("add", "put a new job into the queue, without waiting for it", _add, add_request),
    ("cancel", "end jobs; their videos so far are kept", _cancel, _JOBS, _AFTER_SECTION),
    ("pause", "pause jobs until they are resumed, and free the device's memory", _pause, *_OR_ALL),
    ("resume", "continue paused or interrupted jobs", _resume, *_OR_ALL),
    ("retry", "queue failed or cancelled jobs again", _resume, *_OR_ALL),
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
    ("export", "copy the video of a job to another place", _export, _JOB, _TO),
)

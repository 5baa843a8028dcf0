"""The command `generate`, which submits or resumes one job and follows it to its end."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import FrameType, TracebackType

from app.commands.arguments import (
    EXIT_BAD_INPUT,
    EXIT_CANCELLED,
    EXIT_FAILED,
    check_proxies,
    given_settings,
    take_engine_environment,
    take_find_mode,
)
from app.commands.plan import check_memory
from app.commands.terminal import JsonLines, ProgressBar
from app.in_process import InProcessEngine
from app.jobs.job import BEGUN, Job, NoSuchJob
from app.jobs.service import JobService, ServiceStopped
from app.jobs.stdio import take_stdout
from app.machine import cache_folder, this_profile
from app.report_text import report_text
from diffusers_helper.errors import INPUT_CODES, InputError
from diffusers_helper.events import Cancelled, Event, Failed, Finished
from diffusers_helper.files import given_path, write_atomic
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = """Interrupted. Go on with: python -m app generate --resume {job} --out {out}
"""
_LEFT = """The other program makes the job. Follow it with: python -m app generate --resume {job} --out {out}
"""
_FOLLOWS = (
    "Another program makes the jobs of this folder. It makes this one in its turn, and this program follows."
)
_LEADS = "The other program has ended. This one makes the job now."
_HELD = "The queue of this folder is paused. It goes on with: python -m app jobs resume --all"


def make_video(arguments: argparse.Namespace) -> int:
    """Make one video and show its progress.

    Returns:
        The exit code, as the program's help says.

    Raises:
        InputError: For anything in the arguments that cannot be used.
        BrokenPipeError: If nobody reads the output any more; the job is cancelled.
        LongtakeError: If the output cannot be written, as on a full disk; the job is cancelled.
    """
    request = None if arguments.resume else request_of(arguments)
    # Both refuse at once what the engine could not use.
    this_profile(os.environ)
    cache_folder()
    take_find_mode(arguments)
    if arguments.in_process:
        take_engine_environment()
    service = _service(arguments, request)
    with Signals() as signals:
        if request is not None:
            job, known = service.submit(request, allow_folder=True), 0
        else:
            job = service.resume(arguments.resume)
            known = 0 if job.is_over else len(service.events(job.id))
        stdout = take_stdout()
        display = (JsonLines if arguments.json else ProgressBar)(stdout, sys.stderr)

        def end() -> None:
            service.cancel(job.id)
            if not service.is_follower:  # otherwise the end comes from the other program
                service.stop()

        def hurry() -> None:
            service.hurry()
            if service.is_follower:
                service.stop()

        signals.cancel, signals.interrupt, signals.hurry = end, service.stop, hurry
        last: Event | None = None
        try:
            display.begin(job)
            if not job.is_over:
                service.start(adopt=False)
            last = _show(service, job, known, display)
        finally:
            if signals.number in (None, signal.SIGINT):
                end()
            service.stop()
    code = _conclude(service, job, last, signals.number or 0, arguments.out)
    if arguments.in_process:
        # The job's thread may still be inside a native library; an interpreter that ends meanwhile aborts.
        stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _service(arguments: argparse.Namespace, request: GenerationRequest | None) -> JobService:
    """Return the service for a request, or for a job to resume, unless it fits into no plan.

    Raises:
        InputError: If it does not fit, if there is no such job, or if the picture cannot be used.
    """
    outputs = given_path(arguments.out, "outputs")
    if arguments.resume and not outputs.is_dir():
        raise NoSuchJob(arguments.resume)
    service = JobService(outputs, InProcessEngine() if arguments.in_process else None)
    if request is not None:
        check_memory(request)
    elif (old := service.job(arguments.resume)).is_resumable:
        check_memory(replace(old.request, image=str(JobFolder(old.folder).input)))
    return service


def _show(service: JobService, job: Job, known: int, display: JsonLines | ProgressBar) -> Event | None:
    """Show a job's events after its first `known` ones, to its end.

    Returns:
        The final event; None if the program is ended before.
    """
    if job.is_over:
        *_, last = (item[1] for item in service.follow(job.id) if item is not None)
        display.show(last)
        return last
    last, told = None, ""
    try:
        for item in service.follow(job.id, known):
            if item is not None:
                last = item[1]
                display.show(last)
            elif (words := _circumstances(service, job.id, told)) != told:
                told = words
                if told:
                    display.tell(told)
    except ServiceStopped:  # by a signal
        return None
    return last if last is not None and last.is_final else None


def _circumstances(service: JobService, job_id: str, told: str) -> str:
    """Return why a job is not being made here at the moment, or that it is again; empty if it always was."""
    job = service.job(job_id)
    if job.state in ("waiting", "paused"):  # on a full disk the job's log, which is followed here, lacks it
        return f"{job.message} {job.remedy}"
    if service.is_follower:
        return _FOLLOWS
    if job.state == "queued" and service.queue.is_held:
        return _HELD
    return _LEADS if told in (_FOLLOWS, _LEADS) else ""


def _conclude(service: JobService, job: Job, last: Event | None, number: int, out: str) -> int:
    """Write what remains to be said after a job's last event, or after a signal, and return the exit code."""
    if isinstance(last, Failed):
        _report(service, job)
    if last is not None:
        return _exit_code(last)
    if number:
        text = _LEFT if service.job(job.id).state in BEGUN else _INTERRUPTED
        sys.stderr.write(text.format(job=job.id, out=shlex.quote(out)))
    return 128 + number


def _report(service: JobService, job: Job) -> None:
    """Write the problem report into the job's folder and print its path."""
    file = JobFolder(job.folder).report
    try:
        write_atomic(file, report_text(service, job.id).encode())
    except OSError:  # as on a full disk, which the failure itself has reported
        return
    sys.stderr.write(f"Report of the problem, without private paths: {file}\n")


def request_of(arguments: argparse.Namespace) -> GenerationRequest:
    """Return the request for a new video that the arguments describe.

    Raises:
        InputError: If something is missing or cannot be used.
    """
    for name in ("image", "prompt"):
        if getattr(arguments, name) is None:
            raise InputError(f"`{name}` is missing.", "Give it, or --resume. See --help.", setting=name)
    given = given_settings(arguments)
    model = find_model(arguments.model, allow_folder=True)
    absence = absence_of(model)
    if absence is not None:
        check_proxies(os.environ)
        if not (arguments.yes and absence.has_room):
            raise NotHere(absence)
    given.setdefault("mode", model.modes[0])
    return GenerationRequest.from_dict(given)


def _exit_code(last: Event | None) -> int:
    if isinstance(last, Finished):
        return 0
    if isinstance(last, Cancelled):
        return EXIT_CANCELLED
    return EXIT_BAD_INPUT if isinstance(last, Failed) and last.code in INPUT_CODES else EXIT_FAILED


class Signals:
    """The effects of signals within the context. Before `cancel` is set they raise KeyboardInterrupt.

    Attributes:
        cancel: Called, in a thread, by the first Ctrl-C.
        interrupt: Called, in a thread, by the first SIGTERM or SIGHUP, as at a shutdown.
        hurry: Called by a second signal, to end the job that is waited for; a third one ends the process.
        number: The first signal.
    """

    def __init__(self) -> None:
        self.cancel: Callable[[], None] | None = None
        self.interrupt: Callable[[], None] | None = None
        self.hurry: Callable[[], None] | None = None
        self.number: int | None = None
        self._hurried = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has the signal ignored
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        act = self.cancel if number == signal.SIGINT else self.interrupt
        if act is None:
            raise KeyboardInterrupt
        if self.number is not None:
            if self._hurried:
                os._exit(128 + self.number)  # the engine ends with us
            self._hurried, act = True, self.hurry or act
        else:
            self.number = number
        threading.Thread(target=act, name="signal", daemon=True).start()

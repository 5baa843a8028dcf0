"""The command `generate`, which submits or resumes jobs and follows them to their end."""

import argparse
import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, MappingProxyType
from typing import Any, Self

from app.commands.arguments import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    Commands,
    add_command,
    add_find_mode,
    add_outputs,
    add_request,
    apply_engine_environment,
    apply_find_mode,
    command_for,
    queue_paused,
    switch,
)
from app.commands.origin import (
    ORIGINS,
    check_changes_of,
    chosen_origin,
    provide_model,
    save_arguments_as_preset,
)
from app.commands.terminal import JsonLines, ProgressBar
from app.jobs.finishing import press_after
from app.jobs.job import BEGUN, Job, NoSuchJob, allows
from app.jobs.making.engine_client import EngineProcess, Message, Trial, follow
from app.jobs.pace import PaceBook
from app.jobs.service import JobService, ServiceStopped
from app.jobs.stdio import complain, say, take_stdout
from app.machine import cache_folder, this_profile
from app.miopen import conv_settings
from app.report_text import report_text
from app.starting import EXIT_CANCELLED, end_within
from app.trials import local_with_trials
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import INPUT_CODES
from diffusers_helper.events import Cancelled, Event, Failed, Finished
from diffusers_helper.failures import failed_event
from diffusers_helper.files import expanded_path, write_atomic
from diffusers_helper.machine.signals import SIGINT, handle, restore
from diffusers_helper.machine.signals import Signals as Numbers
from diffusers_helper.provenance.job_folder import JobFolder

_EXIT_CODES = """\
exit codes: 0 done, 1 failed, 2 invalid command or input, 130 cancelled,
129 or 143 interrupted by a signal, 141 by a closed pipe (--resume continues the job).
Ctrl-C cancels within one step and keeps the video so far; a second Ctrl-C does not wait for the step.
"""
_INTERRUPTED = "Interrupted. Continue with: {command}"
_MADE_ELSEWHERE = "The other program makes the job. Follow it with: {command}"
_FOLLOWS = (
    "Another program makes the jobs of this folder. It will make this one in its turn, and this program "
    "follows it."
)
_LEADS = "The other program has ended. This one makes the job now."
_KILL_SECONDS = 3.0


def add_generate(commands: Commands) -> None:
    parser = add_command(
        commands, "generate", make_video, add_request,
        description="Make a video that starts with a picture and does what a sentence says.\n"
        "The last line on standard output is the path of the video.",
        epilog=_EXIT_CODES,
    )  # fmt: skip
    parser.set_defaults(model=None)  # recipes and branches have a model of their own
    group = parser.add_argument_group("source and output")
    for add in (
        *ORIGINS, add_outputs,
        switch("--json", "print only JSON events, one per line"),
        switch("--verbose", "log each action to standard error"),
        switch("--in-process", "run without the engine process, for debugging"),
        add_find_mode,
    ):  # fmt: skip
        add(group)


def make_video(arguments: argparse.Namespace) -> int:
    """If the output cannot be written, as on a full disk or without a reader, the jobs are interrupted."""
    if arguments.save_preset is not None:
        return save_arguments_as_preset(arguments)
    queue_jobs, requests = chosen_origin(arguments)
    # Both calls refuse at once a request with which the engine would fail.
    this_profile(os.environ)
    cache_folder()
    if arguments.dry_run:
        for number, request in enumerate(requests, 1):
            text = f"{number}: {request.seconds:g} s, {request.mode}, seed {request.seed}, {request.prompt!r}"
            say(request.to_json() if arguments.json else text)
        return 0
    apply_find_mode(arguments)
    if arguments.in_process:
        apply_engine_environment()
    return follow_jobs(open_service(arguments), queue_jobs, arguments)


def follow_jobs(
    service: JobService, queue_jobs: Callable[[JobService], list[Job]], arguments: argparse.Namespace
) -> int:
    jobs, codes = list[Job](), list[int]()

    def cancel_all() -> None:
        try:
            for job in jobs:
                service.queue.cancel(job.id)
        finally:
            if not service.crew.is_follower:  # otherwise the end comes from the other program
                service.stop()

    def kill() -> None:
        service.kill()
        if service.crew.is_follower:
            service.stop()

    with Signals(cancel_all, service.stop, kill) as signals:
        jobs += queue_jobs(service)
        # Of a video that goes on, what is new is shown, and of one that is over its end.
        num_earlier = len(service.events(jobs[0].id)) - jobs[0].is_over if arguments.resume else 0
        stdout = take_stdout()
        try:
            if not jobs[0].is_over:
                service.start(adopt=False)
            signals.repeat()
            for job in jobs:
                display = (JsonLines if arguments.json else ProgressBar)(stdout, sys.stderr)
                last_event = _show(service, job, num_earlier, display, arguments.outputs)
                num_earlier = 0
                codes.append(_exit_code(last_event) if last_event else 128 + (signals.number or 0))
                if isinstance(last_event, Finished):
                    jobs += service.history.made_by(press_after(job.id))
        except BrokenPipeError:  # the reader has left, as `head` does
            codes.append(128 + (signals.number or Numbers.SIGPIPE))
        finally:
            if signals.number == SIGINT:
                cancel_all()
            service.stop()
            for job in jobs:
                _report_end(service, job.id, arguments.outputs)
    return next(filter(None, codes), 0)


def open_service(arguments: argparse.Namespace) -> JobService:
    outputs = expanded_path(arguments.outputs, "outputs")
    job_id = arguments.branch if arguments.resume is None else arguments.resume
    if job_id is not None and not outputs.is_dir():
        raise NoSuchJob(job_id)
    service = JobService(outputs, *([InProcessEngine()] if arguments.in_process else []))
    if job_id and (arguments.branch or allows(service.job(job_id), "resume")):
        provide_model(service.job(job_id).request.model, arguments)
    if arguments.resume and allows(service.job(arguments.resume), "resume"):
        check_changes_of(service, arguments.resume)
    return service


def _show(
    service: JobService, job: Job, num_earlier: int, display: JsonLines | ProgressBar, outputs: str
) -> Event | None:
    display.begin(job, PaceBook(service), service.events(job.id)[:num_earlier])
    last_event = None
    reported = ""
    try:
        for item in service.follow(job.id, num_earlier):
            if item is not None:
                last_event = item[1]
                display.show(last_event)
            elif (circumstances := _reason_to_wait(service, job.id, reported, outputs)) != reported:
                reported = circumstances
                if reported:
                    display.report(reported)
            elif service.job(job.id).state == "running":
                display.tick()
    except ServiceStopped:  # by a signal
        return None
    return last_event if last_event is not None and last_event.is_final else None


def _reason_to_wait(service: JobService, job_id: str, reported: str, outputs: str) -> str:
    """Say why a job is not being made here at present, or that it is again; "" if all is as usual.

    Args:
        reported: The sentence that was shown last.
    """
    job = service.job(job_id)
    # On a full disk, the log that is followed here cannot have an event about the pause.
    if job.state == "paused":
        return f"{job.message} Continue it with: {command_for(outputs, 'jobs', 'resume', job.id)}"
    if job.waits or job.state == "waiting":
        return f"{job.message} {job.remedy}"
    if service.crew.is_follower:
        return _FOLLOWS
    if job.state == "queued" and service.queue.is_paused:
        return queue_paused(outputs)
    return _LEADS if reported in (_FOLLOWS, _LEADS) else ""


def _report_end(service: JobService, job_id: str, outputs: str) -> None:
    try:
        job = service.job(job_id)
    except NoSuchJob:  # the user removed it
        return
    if job.state == "failed":
        file = JobFolder(job.folder).report
        with contextlib.suppress(OSError):  # for example a full disk, which the failure itself has reported
            write_atomic(file, report_text(service, job.id).encode())
            complain(f"A report of the problem, without private paths, is in {file}")
    elif not job.is_over:
        text = _MADE_ELSEWHERE if job.state in BEGUN else _INTERRUPTED
        complain(text.format(command=command_for(outputs, "generate", "--resume", job.id)))


def _exit_code(event: Event | None) -> int:
    if isinstance(event, Finished):
        return 0
    if isinstance(event, Cancelled):
        return EXIT_CANCELLED
    return EXIT_BAD_INPUT if isinstance(event, Failed) and event.code in INPUT_CODES else EXIT_FAILED


class Signals:
    """A context manager that has callbacks react to signals.

    Args:
        cancel: Called in a thread at the first signal if that is Ctrl-C.
        interrupt: Called in a thread at the first signal if that is SIGTERM or SIGHUP, as at a shutdown.
        kill: Called in a thread at a second signal, to end the current job. The process ends soon after,
            even if this does not succeed, and at once at a third signal.

    Attributes:
        number: The first signal; None before it.
    """

    def __init__(
        self, cancel: Callable[[], None], interrupt: Callable[[], None], kill: Callable[[], None]
    ) -> None:
        self._cancel, self._interrupt, self._kill = cancel, interrupt, kill
        self.number: int | None = None
        self._exit_timer: threading.Timer | None = None
        self._previous_handlers: dict[Numbers, object] = {}

    def __enter__(self) -> Self:
        self._previous_handlers = handle(self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        restore(self._previous_handlers)
        if self._exit_timer is not None:
            self._exit_timer.cancel()

    def repeat(self) -> None:
        """React again to the first signal, which may have come before there was anything to end."""
        if self.number is not None:
            self._reaction()()

    def _reaction(self) -> Callable[[], None]:
        return self._cancel if self.number == SIGINT else self._interrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._exit_timer is not None:
            os._exit(128 + (self.number or number))  # the engine ends with this process
        if self.number is None:
            self.number = number
            reaction = self._reaction()
        else:
            reaction = self._kill
            self._exit_timer = end_within(_KILL_SECONDS, 128 + self.number)
        threading.Thread(target=reaction, name="signal", daemon=True).start()


class InProcessEngine(EngineProcess):
    """An engine in this process. Its thread can be cancelled but not killed: `kill` only ends `run`."""

    restarts = False

    def __init__(self) -> None:
        super().__init__()
        self._token = CancelToken()  # of the job that is running
        self._runner: Any = None

    @property
    def pid(self) -> int:
        return os.getpid()

    def start(self) -> None:
        """Do nothing, because the libraries are loaded with the first job."""

    def run(
        self, job: Job, *, blocklist: Mapping[Trial, str] = MappingProxyType({})
    ) -> Iterator[Event | None]:
        events = self._events = queue.SimpleQueue()
        token = self._token = CancelToken()
        arguments = (job, token, events)
        threading.Thread(target=self._make, args=arguments, name="engine", daemon=True).start()
        yield from follow(job.id, events)

    def cancel(self, job_id: str) -> None:
        self._token.cancel()

    def kill(self) -> None:
        self._events.put(None)

    def close(self) -> None:
        """Do nothing, because the loaded model is freed with this object."""

    def _make(self, job: Job, token: CancelToken, events: queue.SimpleQueue[Message]) -> None:
        try:
            # Importing torch takes seconds, and only this engine needs it here.
            from diffusers_helper.job.card import CardLost
            from diffusers_helper.miopen_fallback import initialize_miopen_fallback
            from diffusers_helper.runner import Runner

            if self._runner is None:
                local = local_with_trials(os.environ)
                self._runner = Runner(local, initialize_miopen_fallback(**conv_settings()))
        except Exception as error:  # noqa: BLE001 - the thread ends, and the job reports why
            events.put(failed_event(error, job.id))
            return
        try:
            self._runner.run(job.folder, events.put, token)
        except CardLost:
            events.put(None)

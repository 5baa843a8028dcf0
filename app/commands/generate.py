"""The command `generate`: one job, handed in, followed to its end, and cancelled by a signal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import FrameType, TracebackType

from app.commands.arguments import (
    EXIT_BAD_INPUT,
    EXIT_CANCELLED,
    EXIT_FAILED,
    take_engine_environment,
    take_find_mode,
)
from app.commands.terminal import JsonLines, ProgressBar
from app.in_process import InProcessEngine
from app.jobs.job import Job
from app.jobs.service import JobService
from app.jobs.stdio import take_stdout
from app.report_text import report_text
from diffusers_helper.events import Cancelled, Event, Failed, Finished
from diffusers_helper.files import write_atomic
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.job_folder import JobFolder
from diffusers_helper.planning.profiles import detect, profile_for
from diffusers_helper.request import GenerationRequest

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def make_video(arguments: argparse.Namespace) -> int:
    """Makes one video and shows how it goes.

    Returns: exit code, as the program's help says.

    Raises:
        InputError: for anything in the arguments that cannot be used.
        BrokenPipeError: if nobody reads the output any more; the job is cancelled.
    """
    request = _request(arguments)
    profile_for(detect(os.environ), os.environ)  # refuses here what the engine could not use
    take_find_mode(arguments)
    if arguments.in_process:
        take_engine_environment()
    service = JobService(Path(arguments.out), InProcessEngine() if arguments.in_process else None)
    with Signals() as signals:
        job = service.submit(request, allow_folder=True)
        stdout = take_stdout()
        display = (JsonLines if arguments.json else ProgressBar)(stdout, sys.stderr)

        def end() -> None:
            service.cancel(job.id)
            service.stop()

        signals.ask = end
        last: Event | None = None
        try:
            display.begin(job)
            service.start(adopt=False)
            for item in service.follow(job.id):
                if item is not None:
                    last = item[1]
                    display.show(last)
        finally:
            end()
    if isinstance(last, Failed):
        _report(service, job)
    code = _exit_code(last)
    if arguments.in_process:
        # The job's thread may be inside a native library yet, and an interpreter that ends around it aborts.
        stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _report(service: JobService, job: Job) -> None:
    """Writes the problem report into the job's folder and says where it is."""
    file = JobFolder(job.folder).report
    try:
        write_atomic(file, report_text(service, job.id).encode())
    except OSError:  # as on a full disk, of which the failure itself has told
        return
    sys.stderr.write(f"Report of the problem, without private paths: {file}\n")


def _request(arguments: argparse.Namespace) -> GenerationRequest:
    names = {field.name for field in fields(GenerationRequest)}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    given.setdefault("mode", find_model(arguments.model, allow_folder=True).modes[0])
    return GenerationRequest.from_dict(given)


def _exit_code(last: Event | None) -> int:
    if isinstance(last, Finished):
        return 0
    if isinstance(last, Cancelled):
        return EXIT_CANCELLED
    return EXIT_BAD_INPUT if isinstance(last, Failed) and last.code == "bad_input" else EXIT_FAILED


class Signals:
    """While it is entered, the first Ctrl-C or SIGTERM calls `ask` in a thread, the second ends the process.

    Before `ask` is set they raise KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.ask: Callable[[], None] | None = None
        self._asked = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.ask is None:
            raise KeyboardInterrupt
        if self._asked:
            os._exit(EXIT_CANCELLED)  # the engine ends with us
        self._asked = True
        threading.Thread(target=self.ask, name="cancel", daemon=True).start()

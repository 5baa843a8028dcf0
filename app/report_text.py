"""The text of a problem report, which helps to find a fault without revealing anything about the user."""

import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from app.jobs.job import Job
from app.jobs.service import JobService
from app.redact import without_names, without_paths
from diffusers_helper import __version__
from diffusers_helper.events import Event, Failed, to_dict
from diffusers_helper.machine.packages import version_of
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.models.registry import plan_of
from diffusers_helper.request import PICTURES, SETTINGS, TIMED_PICTURES
from diffusers_helper.units import count_text, duration, gb_text

LAST_EVENTS = 30
MAX_VALUE = 1000  # characters of one setting or field; a long prompt is cut to its beginning
MAX_DETAIL = 8000
_PACKAGES = ("torch", "diffusers", "transformers", "gradio", "av", "numpy")


def report_text(service: JobService, job_id: str) -> str:
    """Write a plain text with versions, and with the settings, the failure and the last events of a job.

    Paths, the names of the user and of the machine, and texts that look like a password or a key are
    removed. The text contains no environment variables.
    """
    job = service.job(job_id)
    events = service.events(job_id)
    last_events = events[-LAST_EVENTS:]
    chapters = (
        ("Longtake problem report", _version_lines()),
        (f"Job {job.id}", _job_lines(job)),
        ("Settings", _setting_lines(job)),
        ("What happened", _ending_lines(job, events)),
        (f"Last {len(last_events)} of {len(events)} events", _event_lines(last_events)),
    )
    text = "\n\n".join("\n".join((title, *lines)) for title, lines in chapters)
    return without_names(without_paths(text, job.folder.parent)) + "\n"


def _version_lines() -> Iterator[str]:
    yield f"  Longtake {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield "  " + ", ".join(f"{name} {version_of(name) or 'not installed'}" for name in _PACKAGES)
    yield f"  {count_text(os.cpu_count() or 0, 'CPU')}, {gb_text(host_memory().total)} GB of RAM"


def _job_lines(job: Job) -> Iterator[str]:
    seconds = job.frames / plan_of(job.request).fps
    yield f"  state {job.state}, {count_text(job.frames, 'frame')} ({seconds:.2f} s) of video"
    if job.started is not None and job.ended is not None:
        waited_seconds, made_seconds = job.started - job.created, job.ended - job.started
        yield f"  took {duration(made_seconds)} after {duration(waited_seconds)} in the queue"


def _setting_lines(job: Job) -> Iterator[str]:
    for name, value in asdict(job.request).items():
        text = Path(value).name if name in PICTURES else value
        if name == TIMED_PICTURES:
            text = SETTINGS[name].summary(value)
        yield f"  {name}: {_bounded(repr(text))}"


def _ending_lines(job: Job, events: list[Event]) -> Iterator[str]:
    yield f"  {job.message} {job.remedy}".rstrip() if job.message else f"  {job.state}"
    failed = next((event for event in reversed(events) if isinstance(event, Failed)), None)
    if failed is not None and failed.detail:
        yield f"  code {failed.code}"
        yield from (f"  | {line}" for line in failed.detail[-MAX_DETAIL:].splitlines())


def _event_lines(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        data = to_dict(event)
        name, _, time = data.pop("event"), data.pop("job"), data.pop("time")
        fields = (f"{key}={_bounded(repr(value))}" for key, value in data.items() if key != "detail")
        yield " ".join((f"  {time:9.2f} s", name, *fields))


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}… ({len(text)} characters)"

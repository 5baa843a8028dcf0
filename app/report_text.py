"""The text of a problem report, which helps to find a fault without revealing anything about the user."""

import os
import platform
from dataclasses import asdict
from pathlib import Path

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
    lines = [
        "Longtake problem report",
        f"  Longtake {__version__}, Python {platform.python_version()}, {platform.platform()}",
        "  " + ", ".join(f"{name} {version_of(name) or 'not installed'}" for name in _PACKAGES),
        f"  {count_text(os.cpu_count() or 0, 'CPU')}, {gb_text(host_memory().total)} GB of RAM",
        f"\nJob {job.id}",
        f"  state {job.state}, {count_text(job.frames, 'frame')} "
        f"({job.frames / plan_of(job.request).fps:.2f} s) of video",
    ]
    if job.started is not None and job.ended is not None:
        waited_seconds, made_seconds = job.started - job.created, job.ended - job.started
        lines.append(f"  took {duration(made_seconds)} after {duration(waited_seconds)} in the queue")
    lines.append("\nSettings")
    for name, value in asdict(job.request).items():
        text = Path(value).name if name in PICTURES else value
        if name == TIMED_PICTURES:
            text = SETTINGS[name].summary(value)
        lines.append(f"  {name}: {_bounded(repr(text))}")
    lines += [
        "\nWhat happened",
        f"  {job.message} {job.remedy}".rstrip() if job.message else f"  {job.state}",
    ]
    failed = next((event for event in reversed(events) if isinstance(event, Failed)), None)
    if failed is not None and failed.detail:
        lines.append(f"  code {failed.code}")
        lines += (f"  | {line}" for line in failed.detail[-MAX_DETAIL:].splitlines())
    lines.append(f"\nLast {len(last_events)} of {len(events)} events")
    lines += map(_event_line, last_events)
    return without_names(without_paths("\n".join(lines), job.folder.parent)) + "\n"


def _event_line(event: Event) -> str:
    data = to_dict(event)
    name, _, time = data.pop("event"), data.pop("job"), data.pop("time")
    fields = (f"{key}={_bounded(repr(value))}" for key, value in data.items() if key != "detail")
    return " ".join((f"  {time:9.2f} s", name, *fields))


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}… ({len(text)} characters)"

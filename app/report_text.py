"""The text of a problem report: what helps to find a fault, nothing that tells who or where a person is."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from app.jobs.job import Job
from app.jobs.service import JobService
from diffusers_helper import __version__
from diffusers_helper.events import Event, Failed, to_dict
from diffusers_helper.packing import FPS

LAST_EVENTS = 30
MAX_VALUE = 1000  # characters of one setting or field: a long prompt is told by its beginning
MAX_DETAIL = 8000
_PACKAGES = ("torch", "diffusers", "transformers", "gradio", "av", "numpy")
_ROOT = Path(__file__).resolve().parents[1]
_SECRETS = (
    (re.compile(r"\b(hf|sk|ghp|gho|github_pat)_[A-Za-z0-9_]{8,}"), "<secret>"),
    (re.compile(r"(?i)\b(authorization|cookie|password|passwd|token|secret|api[_-]?key)(\s*[:=]\s*)\S+"),
     r"\1\2<secret>"),
    (re.compile(r"(?<=://)[^\s/@]+@"), "<secret>@"),
)  # fmt: skip
# What is left after the known folders are named: any other absolute path keeps its last part only.
_PATHS = (
    re.compile(r"(?<=')(?:~\w*)?/(?:[^/'\n<>]+/)+([^/'\n<>]*)(?=')"),
    re.compile(r'(?<=")(?:~\w*)?/(?:[^/"\n<>]+/)+([^/"\n<>]*)(?=")'),
    re.compile(r"(?:(?<=file://)|(?<![\w<>/.:~-]))(?:~\w*)?/(?:[^\s/'\"`,;()<>|]+/)+([^\s/'\"`,;()<>|]*)"),
)


def report_text(service: JobService, job_id: str) -> str:
    """Versions, settings, what happened and the last events of a job, as plain text.

    Paths keep only what lies inside the outputs folder, the program and Python; the names of the person and
    of the machine, and what looks like a password or a key, are taken out. The environment is not looked at.

    Raises:
        InputError: if there is no such job.
    """
    job = service.job(job_id)
    events = service.events(job_id)
    last = events[-LAST_EVENTS:]
    parts = (
        ("Longtake problem report", _versions()),
        (f"Job {job.id}", _facts(job)),
        ("Settings", _settings(job)),
        ("What happened", _ending(job, events)),
        (f"Last {len(last)} of {len(events)} events", _event_lines(last)),
    )
    text = "\n\n".join("\n".join((title, *lines)) for title, lines in parts)
    return _without_names(without_paths(text, job.folder.parent)) + "\n"


def _versions() -> Iterator[str]:
    yield f"  Longtake {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield "  " + ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield f"  {os.cpu_count()} CPUs, {memory:.1f} GB of RAM"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _facts(job: Job) -> Iterator[str]:
    yield f"  state {job.state}, {job.frames} frames ({job.frames / FPS:.2f} s) of video"
    if job.started is not None and job.ended is not None:
        yield f"  took {job.ended - job.started:.1f} s after {job.started - job.created:.1f} s in the queue"


def _settings(job: Job) -> Iterator[str]:
    for name, value in asdict(job.request).items():
        shown = Path(value).name if name == "image" else value
        yield f"  {name}: {_bounded(repr(shown))}"


def _ending(job: Job, events: list[Event]) -> Iterator[str]:
    yield f"  {job.message} {job.remedy}".rstrip() if job.message else f"  {job.state}"
    failed = next((event for event in reversed(events) if isinstance(event, Failed)), None)
    if failed is not None and failed.detail:
        yield f"  code {failed.code}"
        yield from (f"  | {line}" for line in failed.detail[-MAX_DETAIL:].splitlines())


def _event_lines(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        data = to_dict(event)
        name, _, time = data.pop("event"), data.pop("job"), data.pop("time")
        shown = (f"{key}={_bounded(repr(value))}" for key, value in data.items() if key != "detail")
        yield " ".join((f"  {time:9.2f} s", name, *shown))


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}… ({len(text)} characters)"


@lru_cache(maxsize=256)
def without_paths(text: str, outputs: Path | None = None) -> str:
    """The text with no absolute path in it.

    Those in the outputs folder, the program, Python and the home folder begin with a word for it; of any
    other only the last part is left.
    """
    folders = [
        *([(outputs, "<outputs>")] if outputs else []),
        (_ROOT, "<longtake>"),
        (Path(sys.prefix), "<python>"),
        (Path(sys.base_prefix), "<python>"),
        (Path.home(), "<home>"),
    ]
    known = {str(form): name for path, name in folders for form in (path, path.resolve())}
    for path in sorted(known, key=len, reverse=True):  # the innermost first
        if len(path) > 1:
            text = re.sub(rf"{re.escape(path)}(?![\w.-])", known[path], text)
    for pattern in _PATHS:
        text = pattern.sub(r"<path>/\1", text)
    return text


def _without_names(text: str) -> str:
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    for word, replacement in ((_user(), "<user>"), (socket.gethostname(), "<host>")):
        # Shorter names, and those that say nothing, would only garble the rest.
        if len(word) > 2 and word not in ("root", "localhost", "user"):
            text = re.sub(rf"(?i)(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", replacement, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return ""

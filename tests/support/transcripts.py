"""Transcripts of what is done to an outputs folder: after each step, all that was said and has changed."""

import itertools
import json
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.jobs.job import Job
from app.jobs.storage.database import DATABASE_FILE, DATABASE_FOLDER
from diffusers_helper.errors import InputError
from diffusers_helper.request import GenerationRequest
from tests.support.program import answer

BEGIN = 1_000_000_000.0  # a time in September 2001
_ELSEWHERE = {"id", "request", "words", "model", "seconds"}  # told by other lines
_UNTOLD = tuple(f"{DATABASE_FOLDER}/{name}" for name in (DATABASE_FILE, "program-", "reserve"))
_TRASH = f"{DATABASE_FOLDER}/trash"
_TIMES = ("created", "started", "ended", "removed", "place")


class Clock:
    """The time and the ids of jobs, neither of which depends on when a test runs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, utime, letters = BEGIN, os.utime, itertools.count(ord("a"))
        patch.setattr(time, "time", lambda: self.now)
        patch.setattr("app.jobs.storage.trash.os.utime", lambda path: utime(path, (self.now, self.now)))
        patch.setattr(
            "diffusers_helper.provenance.job_folder.new_job_id", lambda: f"job-{chr(next(letters))}"
        )
        patch.setenv("TZ", "UTC")
        time.tzset()


def _since(seconds: float) -> str:
    is_of_a_file = seconds - BEGIN > 10**8  # and not the clock's
    return "sometime" if is_of_a_file else f"{seconds - BEGIN:+.0f} s"


def own_settings(request: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a request that are not as they are by themselves."""
    usual = {field.name: field.default for field in fields(GenerationRequest)}
    return {name: value for name, value in request.items() if value != usual.get(name)}


def settings_of(request: str) -> dict[str, Any]:
    return own_settings(json.loads(request))


def database_facts(outputs: Path) -> Iterator[tuple[str, str]]:
    file = outputs / DATABASE_FOLDER / DATABASE_FILE
    if not file.is_file():
        return
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT * FROM jobs ORDER BY id").fetchall()
        for row in rows:
            for name, value in zip(row.keys(), row, strict=True):
                if value and name not in _ELSEWHERE:
                    is_time = name in _TIMES and value > BEGIN / 2
                    view = _since(value) if is_time else f"{value}"
                    yield f"{row['id']}.{name}", "a program" if name == "owner" else view
            calls, stored = settings_of(row["request"]), outputs / row["id"] / "request.json"
            words = f"{row['words']!r}, {row['model']}, {row['seconds']:g} s"
            yield f"{row['id']} asks", f"{calls}, found by {words}"
            if stored.is_file() and settings_of(stored.read_text()) != calls:
                yield f"{row['id']} asks in its folder", f"{settings_of(stored.read_text())}"
        for row in database.execute("SELECT * FROM commands ORDER BY job, command"):
            yield f"{row['job']}.told to {row['command']}", row["content"]
        for row in database.execute("SELECT * FROM transitions ORDER BY job, rowid"):
            yield f"{row['job']}.became {row['state']} at {_since(row['time'])}", f"({row['reason']})"
        ((paused,),) = database.execute("SELECT paused FROM folder").fetchall()
        yield from [("the queue is held, and goes on with", paused)] if paused else []


def _files(outputs: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(outputs.rglob("*")):
        name = file.relative_to(outputs).as_posix()
        if name.startswith(_TRASH) and name.count("/") == _TRASH.count("/") + 1:
            yield name, f"({sum(item.is_file() for item in file.rglob('*'))} files)"
        if name.startswith((_TRASH, *_UNTOLD)) or not file.is_file():
            continue
        yield from _content(file, name) if not name.startswith(DATABASE_FOLDER) else [(name, "")]


def _content(file: Path, name: str) -> Iterator[tuple[str, str]]:
    data = file.read_bytes()
    if file.name == "events.jsonl":
        for number, line in enumerate(data.decode().splitlines(), 1):
            yield (
                f"{name}, line {number}",
                f"{ {key: value for key, value in json.loads(line).items() if value} }",
            )
    elif file.name == "states.jsonl":
        marked = json.loads(data.splitlines()[-1])
        yield name, f"({_since(marked['created'])}, {_since(marked['place'])}{marked['press']})"
    elif file.suffix == ".json" and file.name != "request.json":
        content = json.loads(data)
        for span in content["spans"] if file.name == "lineage.json" else ():
            span["settings"] = own_settings(span["settings"])
        yield name, f"{content}"
    elif file.name == "input.png":
        with Image.open(file) as picture:
            yield name, f"{picture.mode} {picture.size} {picture.getpixel((5, 5))}"
    else:
        yield name, f"({len(data)} B)" if file.name != "request.json" else ""


def facts_of(outputs: Path) -> dict[str, str]:
    """Return all that the database and the files of an outputs folder say."""
    return dict([*database_facts(outputs), *_files(outputs)])


def changes_of(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Tell what has changed: a line for a job's columns, and one for the files that it gets or loses."""
    lines, together = list[str](), dict[str, int]()
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        mark = "+" if old is None else "-" if new is None else "~"
        value = (old if new is None else new if old is None or " asks" in name else f"{old} -> {new}") or ""
        owner, dot, fact = name.partition("/" if "/" in name else ".")
        texts = f"{mark}{fact} {value}".rstrip()
        texts = f"-{fact}" if "line " in name else texts
        if not dot or (new is not None and "line " in name):
            lines.append(f"{mark} {name}: {value}".rstrip(": "))
        elif (at := together.get(owner + dot)) is not None:
            lines[at] += f", {texts}"
        else:
            together[owner + dot] = len(lines)
            lines.append(f"{owner}{dot} {texts}")
    return lines


def _short(line: str) -> str:
    """Leave out of a record in JSON the settings that are as they are by themselves."""
    record = json.loads(line) if line.startswith("{") else {}
    return f"{record | {'request': own_settings(record['request'])}}" if "request" in record else line


class Transcript:
    """The steps of a test over one outputs folder, as text for a snapshot."""

    def __init__(self, root: Path, output: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.outputs = root / "outputs"
        self.clock = Clock(patch)
        self._root, self._output, self._lines = root, output, list[str]()

    def __call__(self, *commands: str) -> None:
        """Run commands of the command line, without the option of the folder."""
        for command in commands:
            self.does(command, lambda command=command: self._run(command))

    def _run(self, command: str) -> None:
        words = [*shlex.split(command), "--out", str(self.outputs)]
        code, out, err = answer(self._output, *(word.replace("TMP", str(self._root)) for word in words))
        output = [out.replace("\n", " | ")] if command.startswith("jobs show") and out else out.splitlines()
        self._lines += [*map(_short, output), *(f"!{code} {line}" for line in err.splitlines())]
        assert err or not code

    def does(self, title: str, act: Callable[[], object]) -> None:
        """Do something, and tell what it has changed; each step takes a second after the one before."""
        before = facts_of(self.outputs)
        self.clock.now += 1.0
        self._lines.append(f"> {title}")
        try:
            lines = act()
        except InputError as error:
            lines = f"refused: {error}"
        self._lines += [] if lines is None or isinstance(lines, Job) else [f"{lines}"]
        self._lines += [f"  {line}" for line in changes_of(before, facts_of(self.outputs))]

    def transcript(self) -> str:
        """Return the steps since the last call."""
        lines, self._lines = self._lines, []
        return "\n".join(line.replace(str(self._root), "TMP").rstrip() for line in lines)

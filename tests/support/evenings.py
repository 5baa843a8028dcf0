"""An evening of a user over the served page: each press with its answer, and what it changes in others."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs import steering
from app.jobs.job import Job
from app.machine import machine_of_card
from app.ui.finish.endpoints import FinishCalls
from app.ui.form.endpoints import FormCalls
from app.ui.history.endpoints import HistoryCalls
from app.ui.models.endpoints import ModelCalls
from app.ui.queue.endpoints import JobCalls
from diffusers_helper.planning.profiles import profile_for
from diffusers_helper.provenance import job_folder
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import SETTINGS
from tests.support.asking import ask
from tests.support.jobs import wait_until
from tests.support.pages import Stand, staged_page
from tests.support.staged_engine import StagedEngine
from tests.support.whole_answers import changes, whole

_GROUPS = JobCalls, HistoryCalls, FormCalls, ModelCalls, FinishCalls
_MEASURED = ("bytes", "size", "removed_bytes", "free_bytes", "report")  # on this machine
_SHA = re.compile(r"[0-9a-f]{64}")
_LONG = re.compile(r"(\w)\1{20,}")
_SIZE = re.compile(r"\b\d[\d.]* [kKMG]B\b")


class Clock:
    """The time of day, which goes on only when a test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.began = self.now = float(int(time.time()))
        patch.setattr(time, "time", lambda: self.now)


class Evening:
    def __init__(self, stand: Stand, patch: pytest.MonkeyPatch) -> None:
        self._stand, self._patch = stand, patch
        self.clock = Clock(patch)
        numbers = itertools.count(1)
        day = SimpleNamespace(strftime=lambda _: "20261128-190000")
        patch.setattr(job_folder, "time", day)
        patch.setattr(job_folder, "secrets", SimpleNamespace(token_hex=lambda _: f"{next(numbers):04x}"))
        patch.setattr(steering, "random_seed", lambda: 1000 + next(numbers))
        self._last: dict[str, Any] = {}
        self._lines: list[str] = []
        self._is_program = False
        self.answer: Any = None

    def transcript(self) -> str:
        """Return what was told since the last time."""
        lines, self._lines = self._lines, []
        return "\n".join(lines)

    def go(self, job: Job, events: int, *, seconds: float = 0.0, again: int = 0) -> None:
        """Let events happen, after so many seconds, and wait until they are stored, but for repeated ones."""
        self.clock.now += seconds
        log = JobFolder(job.folder).events
        before = self._events_in(log)
        self._stand.engine.go(events)
        wait_until(lambda: self._events_in(log) >= before + events - again)

    def make(self, job: Job) -> None:
        """Let the only job that is open come to its end, a minute after it has begun."""
        self.until(job.id, "running")
        self.clock.now += 60
        self._stand.engine.go(1000)
        wait_until(lambda: self._stand.service.job(job.id).is_over)
        self._stand.engine._permits = 0

    def _events_in(self, log: Any) -> int:
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def press(self, name: str, /, **message: Any) -> Any:
        """Ask as the page does, and the next time as a program does, and tell what is new in the answer."""
        self.clock.now += 7
        self._is_program = not self._is_program
        status, value = self._as_program(name, message) if self._is_program else self._as_page(name, message)
        sent = json.dumps(self._masked(message), ensure_ascii=False)[:120]
        self._lines.append(f"--- {name} {sent}{'' if status == 200 else f' {status}'}")
        if status == 200:
            self._tell(name, self._masked(value))
        else:
            self._lines.append(whole(value))
        self.answer = value
        return value

    def until(self, job: str, state: str) -> None:
        wait_until(lambda: self._stand.service.job(job).state == state)

    def _tell(self, name: str, answer: Any) -> None:
        """Tell of an answer what is new, each job's record by itself."""
        records = list[dict[str, Any]]()
        if isinstance(answer, dict):
            for part, key in (("jobs", "id"), ("cards", "job")):
                if answer.get(part) and all(key in record for record in answer[part]):
                    records = answer[part]
                    answer = answer | {part: [record[key] for record in records]}
        elif isinstance(answer, list) and all(
            isinstance(item, dict) and "request" in item for item in answer
        ):
            records = answer
            answer = [record["id"] for record in records]
        if isinstance(answer, dict) and "request" in answer:
            records = [answer]
        else:
            self._lines.append(changes(self._last[name], answer) if name in self._last else whole(answer))
            self._last[name] = answer
        for record in records:
            key = record["id"] if "id" in record else f"card {record['job']}"
            before = self._last.get(key, {})
            lines = changes({name: value for name, value in before.items() if name in record}, record)
            self._lines += [] if lines == "(the same)" else [f"{key}:", lines]
            self._last[key] = before | record

    def _as_page(self, name: str, message: dict[str, Any]) -> tuple[int, Any]:
        answer = ask(self._stand.url, f"/api/{name}", method="POST", data=message)
        return answer.status, json.loads(answer.body)

    def _as_program(self, name: str, message: dict[str, Any]) -> tuple[int, Any]:
        call = next((vars(group)[name] for group in _GROUPS if name in vars(group)), None)
        if call is None:  # only the page has it
            return self._as_page(name, message)
        bound = signature(call).bind(None, **message)
        bound.apply_defaults()
        data = {"data": bound.args[1:]}
        answer = ask(self._stand.url, f"/gradio_api/run/{name}", method="POST", data=data)
        value = json.loads(answer.body)
        return answer.status, value["data"][0] if answer.status == 200 else value

    def _masked(self, value: Any, name: str = "") -> Any:
        if name == "text" and value.startswith("{"):  # a form's settings
            return self._masked(json.loads(value))
        if name in ("request", "settings") and isinstance(value, dict):
            usual = {name: setting.default for name, setting in SETTINGS.items()}
            assert name == "settings" or value.keys() == usual.keys()
            value = {key: item for key, item in value.items() if item != usual.get(key)}
        if isinstance(value, dict):
            return {key: self._masked(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._masked(item, name) for item in value]
        if name in _MEASURED and value is not None:
            return "…"
        if isinstance(value, float | int) and abs(value - self.clock.began) < 1e5:
            return f"{value - self.clock.began:+g} s"
        if isinstance(value, str):
            value = re.sub(rf"\b{self.clock.began // 1e6:.0f}\d{{6}}\.\d+", "<time>", value)
            value = _LONG.sub(lambda match: f"{match[1]}…({len(match[0])})", value)
            value = _SHA.sub("<sum>", value)
            return _SIZE.sub("… KB", value) if "disk" in value else value
        return value


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    engine = StagedEngine()
    profile = profile_for(machine_of_card("gfx1100:24"), {})
    engine.card = replace(engine.card, label="card 0", profile=profile)
    with staged_page(tmp_path, engine, profile=profile) as stand:
        yield stand


@pytest.fixture
def evening(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evening]:
    yield Evening(stand, monkeypatch)
    monkeypatch.undo()

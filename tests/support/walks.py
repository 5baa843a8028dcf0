"""A walk of a user through the whole page, whose scripts ask the calls of a service without a server.

After each step, all that a screen reader would find on the page is told by what has changed.
"""

import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.jobs.job import Job, size_of
from app.jobs.service import JobService
from app.machine import machine_of_card
from app.ui.api import error_handlers
from app.ui.catalogue import Catalogue
from app.ui.live.progress import LiveJob
from app.ui.live.scene import Presenter
from app.ui.live.subscribe import _Watch
from app.ui.page import build_page
from app.ui.planner import Planner
from diffusers_helper.events import Event, Failed, SectionFinished
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.planning.profiles import profile_for
from diffusers_helper.provenance import job_folder
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import SETTINGS, GenerationRequest
from diffusers_helper.units import GB
from tests.support.page_scripts import scripted_page
from tests.support.reported_jobs import history
from tests.support.staged_engine import memory_record

NOON = 1_795_867_200.0  # 28 November 2026, 12:00 UTC
# The page as it starts, with films that have a length at once, a clock that stands still, short pauses that
# are none and long ones that never end, so that nothing depends on how fast the machine is.
BEGIN = """async () => {
    performance.now = () => 0;
    const wait = window.setTimeout;
    window.setTimeout = (act, time = 0) => (time > 1000 ? 0 : wait(act, time === 20 ? 20 : 0));
    let drawn = 0;
    Math.random = () => 0.5;
    crypto.getRandomValues = (numbers) => numbers.fill(drawn += 1);
    const lengths = new Proxy({}, { get: () => 2, has: () => true });
    for (const video of document.querySelectorAll('video')) film(video, lengths);
    await load('page.js');
}"""
WIDTH = 172
_OF_THE_MACHINE = [
    (r"Longtake \d[\d.]+", "Longtake"), (r"stored in \S+,", "stored in <hub>,"), (r"\d[\d.]* KB", "… KB"),
    (r" in \S*/data/", " in <data>/"),
]  # fmt: skip
# What moves or fades comes to its end.
REST = """() => Promise.allSettled(document.getAnimations().map(
    (move) => (move.effect.getComputedTiming().iterations === Infinity ? null : move.finished)))"""
REPLY = "([at, value, status]) => { calls[at].isOver = true; calls[at].reply(value, status); }"
# The calls that only look.
_QUIET = {
    "form_describe", "history_search", "history_open", "jobs_queue", "jobs_scene", "jobs_usage",
    "models_list", "models_files", "lora_list", "preset_list",
}  # fmt: skip
FACTS = """() => {
    const { dataset } = document.querySelector('.lt-live .lt-stage');
    return `${document.title} ${location.hash} stage ${dataset.state} ${dataset.url ?? ''}`;
}"""


def _told(tree: str) -> list[str]:
    """Return the lines of a tree of what screen readers find, with the options of a list in one."""
    lines: list[str] = []
    for line in tree.split("\n"):
        text = line.strip().removeprefix("- ")
        for pattern, words in _OF_THE_MACHINE:
            text = re.sub(pattern, words, text)
        if text.startswith("option ") and lines:
            lines[-1] += f" {text.removeprefix('option ')}"
        else:
            lines.append(text)
    return lines


def _sent(message: Any) -> str:
    """Write a message with those of its settings that are not the usual ones."""
    if isinstance(message, dict):
        usual = {name: setting.default for name, setting in SETTINGS.items()} if "crf" in message else {}
        message = {
            name: _sent(value) if name == "settings" else value
            for name, value in message.items() if name not in usual or usual[name] != value
        }  # fmt: skip
    text = json.dumps(message, ensure_ascii=False)
    return text if len(text) < WIDTH else f"{text[:WIDTH]}…"


class Walk:
    def __init__(self, page: Any, folder: Path, patch: pytest.MonkeyPatch) -> None:
        numbers = itertools.count(1)
        self.now = NOON
        patch.setattr(time, "time", lambda: self.now)
        patch.setattr(job_folder, "time", SimpleNamespace(strftime=lambda _: "20261128-120000"))
        patch.setattr(job_folder, "secrets", SimpleNamespace(token_hex=lambda _: f"{next(numbers):04x}"))
        self.page, self.service = page, JobService(folder / "outputs")
        planner = Planner(profile_for(machine_of_card("gfx1100:24"), {}))
        app = FastAPI(exception_handlers=error_handlers())
        self._built = build_page(self.service, Catalogue(planner=planner))
        app.include_router(self._built.router)
        self._server = TestClient(app, raise_server_exceptions=False)
        self._presenter = Presenter(self.service)
        self._answered = 0
        self._lines: list[str] = []
        self._last = dict[str, list[str]]()
        self._coming = dict[str, Iterator[Event]]()
        self.held = set[str]()  # the calls that get no answer for now
        page.evaluate(BEGIN)
        self.tell("the page")

    def add(self, prompt: str, **settings: Any) -> Job:
        self.now += 60
        return self.service.queue.add(GenerationRequest(prompt=prompt, **settings))

    def run(self, job: Job, events: int = 1000) -> None:
        """Make the next events of a job happen, 10 seconds after what was before."""
        folder = JobFolder(job.folder)
        if job.id not in self._coming:
            assert self.service.queue.store.claim(lambda other: "card 0" if other.id == job.id else None)
            result = history(job, load=4.0, first=1.4, step=1.2, latent=0.2)
            self._coming[job.id] = iter(result)
            for part in (folder.sections, folder.thumbs):
                part.mkdir(exist_ok=True)
            folder.memory.write_text(json.dumps(memory_record(1)))
        for event in itertools.islice(self._coming[job.id], events):
            self.now += 0.5
            if video := getattr(event, "video", None):
                file = job.folder / Path(video).name
                file.write_bytes(b"a video")
                event = replace(event, **{"video": str(file)})
            if isinstance(event, SectionFinished):
                (folder.sections / f"{event.section:04}.safetensors").touch()
                (folder.thumbs / f"{event.section:04}.webp").touch()
            self.service.queue.store.record(replace(event, time=self._since(job)))

    def _since(self, job: Job) -> float:
        return round(self.now - (self.service.job(job.id).started or 0.0), 1)

    def fail(self, job: Job) -> None:
        failure: dict[str, Any] = {
            "message": "The <b>stage</b> collapsed.",
            "remedy": "Set `vae_tile` to 128.",
        }
        self.service.queue.store.record(Failed(job=job.id, time=self._since(job), **failure))

    def news(self, job: Job | None = None) -> None:
        """Send what the server would send of a job."""
        live = None
        if job is not None:
            job = self.service.job(job.id)
            live = LiveJob(job, None, *size_of(job))
            for event in self.service.events(job.id):
                live.apply(event)
            live.commands = frozenset(self.service.commands(job))
        watch: Any = SimpleNamespace(_service=self.service)
        scene = _Watch._data(watch, self._presenter, live)
        self.page.evaluate("(scene) => streams.at(-1).onmessage({ data: JSON.stringify(scene) })", scene)

    def answer(self) -> None:
        """Answer all calls but those that are held, until the page asks no more."""
        idle = 0
        while idle < 2:
            self.page.evaluate("settle()")
            calls = self.page.evaluate("calls.map(({ path, sent, isOver }, at) => [path, sent, isOver, at])")
            open_calls = [call for call in calls if not call[2] and call[0] not in self.held]
            idle = 0 if open_calls else idle + 1
            for path, sent, _, at in open_calls:
                if path not in _QUIET:
                    self._lines.append(f"> {path} {_sent(sent)}")
                answer = self._server.post(f"/api/{path}", json=sent)
                reply = [at, answer.json(), answer.status_code]
                self.page.evaluate(REPLY, reply)

    def tell(self, name: str) -> None:
        """Tell what is otherwise on the page than before, once all is answered."""
        self.answer()
        self.page.evaluate(REST)
        view = _told(self.page.locator("body").aria_snapshot())
        tab = self.page.evaluate("document.documentElement.dataset.tab + location.hash.split('/').slice(1)")
        self._lines.append(f"--- {name}: {self.page.evaluate(FACTS)}")
        # Each tab is told by what is otherwise than when it was seen last.
        before = self._last.get(tab, [])
        line = ""
        for what, first, end, start, last in SequenceMatcher(None, before, view, False).get_opcodes():
            if what == "equal":
                continue
            for part in (
                *(f"- {gone}" for gone in before[first:end]),
                *(f"+ {new}" for new in view[start:last]),
            ):
                if line and len(line) + len(part) > WIDTH:
                    self._lines.append(line)
                    line = ""
                line = f"{line} | {part}" if line else part
        self._lines += [line] if line else []
        self._last[tab] = view

    def click(self, name: str, role: str = "button", **options: Any) -> None:
        self.page.get_by_role(role, name=name, exact=True, **options).click()
        self.tell(f"{role} {name}")

    def start(self) -> None:
        self.page.locator("#start").click()
        self.tell("start")

    def open(self, tab: str) -> None:
        self.page.locator(f"#tab-{tab}").click()
        self.tell(f"tab {tab}")

    def transcript(self) -> str:
        lines, self._lines = self._lines, []
        return "\n".join(lines)


@pytest.fixture
def walk(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    for module in ("planner", "models.present"):
        monkeypatch.setattr(f"app.ui.{module}.host_memory", lambda: HostMemory(64 * GB, 60 * GB, 0, 0))
    for name, variable in (("config", "XDG_CONFIG_HOME"), ("uploads", "GRADIO_TEMP_DIR"), ("hub", "HF_HOME")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "models.json")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=2**40, used=0, free=2**40))
    service = JobService(tmp_path / "none")
    planner = Planner(profile_for(machine_of_card("gfx1100:24"), {}))
    document = build_page(service, Catalogue(planner=planner)).document.replace("page.js", "elements.js")
    with scripted_page(browser, document, timezone_id="UTC", reduced_motion="reduce") as page:
        page.clock.set_fixed_time(NOON * 1000)
        yield Walk(page, tmp_path, monkeypatch)
    monkeypatch.undo()

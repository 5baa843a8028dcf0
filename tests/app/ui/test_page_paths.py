"""Tests that no path of the machine is sent to a browser or shown on the page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.web import serving
from app.web.guard import Guard
from tests.support.jobs import ROOT
from tests.support.pages import FIRST, FURTHER, Stand, needs_chromium, staged_page, start, status
from tests.support.staged_engine import FAILING_LATE_PROMPT

pytestmark = needs_chromium


class Overheard(Guard):
    """A record of everything that leaves the server: the requested path, and a piece of the answer."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.pieces: list[tuple[str, bytes]] = []
        guards.append(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def heard(message: Message) -> None:
            headers = b"\n".join(b": ".join(pair) for pair in message.get("headers", []))
            self.pieces.append((scope["path"], headers + message.get("body", b"")))
            await send(message)

        await super().__call__(scope, receive, heard)


guards: list[Overheard] = []


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    """Serve a page whose folders have names that a message or an address may write in other ways."""
    folder = tmp_path / "héléna's videos"
    folder.mkdir()
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
    monkeypatch.setattr(serving, "Guard", Overheard)
    monkeypatch.setattr("app.ui.form.actions.missing_packages", lambda: ["ncnn"])  # to enlarge the example
    guards.clear()
    with staged_page(folder) as stand:
        yield stand


def spellings(folder: Path) -> set[bytes]:
    """Return the spellings of a path in markup, in JSON and in an address."""
    return {text.encode() for text in (str(folder), json.dumps(str(folder))[1:-1], quote(str(folder)))}


def test_no_path_leaves_the_server_in_a_whole_job(page: Any, stand: Stand, photo: Path) -> None:
    page.locator("[data-example]").first.click()
    page.wait_for_selector('#set-image label[data-hint^="Video: 128"]')
    stand.engine.go(FIRST)
    status(page, state="running", frames=33)
    stand.engine.go(FURTHER + 1)
    finished = status(page, state="finished", frames=73)
    page.wait_for_selector('.lt-stage[data-url^="jobs/"][data-url$="/video.mp4?v=73"]')
    page.wait_for_function("[...document.querySelectorAll('.lt-cell img')].every(one => one.naturalWidth)")
    with page.expect_download() as download:
        finished.get_by_text("Download the video").click()
    assert Path(download.value.path()).read_bytes() == (next(stand.outputs.glob("2*/video.mp4"))).read_bytes()
    seen = page.content()
    start(page, photo, prompt=FAILING_LATE_PROMPT)
    stand.engine.go(FIRST + FURTHER)
    status(page, state="failed")
    seen += page.content()
    start(page, None)
    status(page, state="running")
    page.reload()
    status(page, state="running")
    page.wait_for_selector('#set-image label[data-hint^="Video: "]')
    seen += page.content()
    made, broken = (job.id for job in reversed(stand.service.jobs()[-2:]))
    for job in (broken, made):
        page.goto(f"{stand.url.rstrip('/')}/#history/{job}")
        page.wait_for_selector(f'.lt-past-open[data-job="{job}"]')
        page.get_by_text("Technical details").last.dispatch_event("click")
        seen += page.content()
    page.get_by_role("button", name="Use these settings").click()
    page.get_by_text("Settings of “the white ball moves up” loaded.").wait_for()
    seen += page.content()
    (guard,) = guards
    asked = {path for path, _ in guard.pieces}
    assert "/gradio_api/upload" in asked
    assert "/api/live" in asked
    assert any(path.startswith("/jobs/") for path in asked)
    assert any(b"uploads/" in piece for _, piece in guard.pieces)
    for folder in (stand.outputs, stand.outputs.parent, ROOT):
        for spelling in spellings(folder):
            reported = {
                (path, piece[max(0, at - 60) : at + 200])
                for path, piece in guard.pieces
                if (at := piece.find(spelling)) >= 0
            }
            assert not reported
            assert spelling.decode() not in seen

"""Tests that waiting clients do not hold up others: calls are stored at once, and waiting is bounded."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.jobs.service import JobService
from app.ui import generate
from app.ui.live import subscribe
from diffusers_helper.request import FINISHING, SETTINGS, GenerationRequest
from tests.support.asking import ask, form
from tests.support.jobs import wait_until
from tests.support.pages import Stand, staged_page, write_photo
from tests.support.staged_engine import StagedEngine

CALLS = 300


class Visitor:
    """A stand-in for a browser or a program that listens to the page."""

    def __init__(self, stand: Stand) -> None:
        self.url = stand.url
        config = json.loads(ask(self.url, "/config").body)
        functions = config["dependencies"]
        self.generate = next(fn["id"] for fn in functions if fn["api_name"] == "generate")

    def upload(self, photo: Path) -> dict[str, Any]:
        headers, body = form(b"photo.png", photo.read_bytes())
        answer = ask(self.url, "/gradio_api/upload", method="POST", headers=headers, body=body)
        return {"path": json.loads(answer.body)[0], "meta": {"_type": "gradio.FileData"}}

    def join(self, function: int, data: list[Any], session: str) -> int:
        message = {"data": data, "fn_index": function, "session_hash": session}
        return ask(self.url, "/gradio_api/queue/join", method="POST", data=message).status

    def call(self, picture: object, seed: int, prompt: str = "a red ball") -> int:
        settings = {name: setting.default for name, setting in SETTINGS.items() if name not in FINISHING}
        settings |= {"image": picture, "prompt": prompt, "seconds": 1, "seed": seed, "mode": None}
        waits = False
        return self.join(self.generate, [*settings.values(), waits], f"call{seed}")

    def end(self) -> str:
        answer = ask(self.url, "/api/form_end", method="POST", data={})
        assert answer.status == 200
        return json.loads(answer.body)

    def first_message(self, path: str, mark: str) -> dict[str, Any]:
        """Return the first message with a mark in a stream, and leave the connection."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            while line := response.readline():
                if line.startswith(b"data: ") and mark in line.decode():
                    return json.loads(line.removeprefix(b"data: "))
        finally:
            connection.close()
        raise AssertionError(f"no {mark}")

    def open_page(self) -> http.client.HTTPConnection:
        """Open a page that never reads its updates."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        connection.request("GET", "/api/live")
        return connection

    def is_served(self) -> bool:
        """Return whether a new page opens and receives updates."""
        assert ask(self.url).status == ask(self.url, "/config").status == 200
        return self.first_message("/api/live", '"job"')["beat"] > 0


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    with staged_page(tmp_path) as stand:
        yield stand


@pytest.mark.slow
def test_calls_are_stored_at_once_and_stop_nobody(stand: Stand, tmp_path: Path) -> None:
    visitor = Visitor(stand)
    picture = visitor.upload(write_photo(tmp_path / "photo.png"))
    assert {visitor.call(picture, seed) for seed in range(CALLS)} == {200}
    assert visitor.is_served()
    wait_until(lambda: len(stand.service.jobs(2 * CALLS)) == CALLS)
    assert len(list(stand.outputs.glob("*/request.json"))) == CALLS
    newest = stand.service.jobs(1)[0]
    assert ask(stand.url, "/api/jobs_cancel", method="POST", data={"jobs": [newest.id]}).status == 200
    assert stand.service.job(newest.id).state == "cancelled"
    assert "Ending" in visitor.end()
    assert visitor.is_served()


@pytest.mark.slow
def test_pages_and_calls_that_nobody_listens_to_stop_nobody(stand: Stand) -> None:
    visitor = Visitor(stand)
    pages = [visitor.open_page() for _ in range(205)]
    assert {visitor.call(None, number, prompt="") for number in range(205)} == {200}  # each is refused
    assert visitor.is_served()
    assert not stand.service.jobs()
    assert "Nothing is running." in visitor.end()
    for one in pages:
        one.close()


def test_one_watch_serves_all_pages_and_ends_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches = list[JobService]()
    watch = subscribe.watch

    def counted(service: JobService, chosen: str) -> Any:
        watches.append(service)
        return watch(service, chosen)

    monkeypatch.setattr(subscribe, "watch", counted)
    service = JobService(tmp_path / "outputs", StagedEngine())

    async def follow() -> None:
        sender = subscribe.Updates(service)
        pages = [sender.stream() for _ in range(5)]
        shown = [json.loads((await anext(page)).removeprefix("data: "))["state"] for page in pages]
        assert shown == ["idle"] * 5
        (thread,) = sender._watches.values()
        for page in pages:
            await page.aclose()
        assert not sender._watches
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()

    asyncio.run(follow())
    assert len(watches) == 1


def test_a_call_ends_with_its_job(tmp_path: Path) -> None:
    service = JobService(tmp_path / "outputs", StagedEngine())
    photo = write_photo(tmp_path / "photo.png")
    first, second = (service.queue.add(GenerationRequest(image=str(photo), seconds=1)) for _ in range(2))

    async def wait() -> None:
        waits = [asyncio.create_task(generate.finished(service, job)) for job in (first, first, second)]
        await asyncio.sleep(0)
        service.queue.cancel(first.id)
        assert [job.state for job in await asyncio.gather(*waits[:2])] == ["cancelled"] * 2
        assert not waits[2].done()
        waits[2].cancel()
        (ended,) = await asyncio.gather(waits[2], return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)

    asyncio.run(wait())

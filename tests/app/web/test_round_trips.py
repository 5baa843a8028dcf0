"""Tests that what the server holds for a client comes back: places, watches of jobs, and small pictures."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from PIL import Image
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from app.ui.live.subscribe import Updates
from app.web.connections import Connection
from app.web.served_files import ServedFiles
from diffusers_helper.provenance.job_folder import JobFolder
from tests.support.shared import Sharing


class Line:
    def __init__(self, number: int) -> None:
        self._addresses = {"peername": (f"192.0.2.{number}", 1), "sockname": ("198.51.100.1", 80)}
        self.is_left = False

    def get_extra_info(self, name: str) -> Any:
        return self._addresses.get(name)

    def is_closing(self) -> bool:
        return self.is_left

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        self.is_left = True

    close = abort


@pytest.mark.parametrize(
    ("answered", "left"), [((), [0, 1, 2]), ((0,), [1, 2, 3]), ((1, 0), [2, 3, 1]), ((2, 0, 1), [3, 2, 0])]
)
def test_the_client_that_has_waited_longest_gives_its_place_once(
    answered: tuple[int, ...], left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(H11Protocol, "on_response_complete", lambda protocol: None)

    async def connect() -> list[int]:
        now = 0.0
        loop, state = asyncio.get_running_loop(), ServerState()
        monkeypatch.setattr(loop, "time", lambda: now)
        config = uvicorn.Config(Line, interface="asgi3")
        config.load()
        lines, ends, gone = list[Line](), list[Connection](), list[int]()
        for number in range(7):
            now += 1.0
            if number == 4:
                for other in answered:
                    now += 1.0
                    ends[other].on_response_complete()
            end = Connection(4, config=config, server_state=state, app_state={}, _loop=loop)
            lines.append(Line(number))
            ends.append(end)
            end.connection_made(lines[-1])  # pyright: ignore[reportArgumentType]
            gone += [other for other, line in enumerate(lines) if line.is_left and other not in gone]
        assert len(state.connections) == 4
        return gone

    assert asyncio.run(connect()) == left


def test_a_page_that_leaves_ends_the_updates_of_no_other(tmp_path: Path) -> None:
    sharing = Sharing(tmp_path)
    service = sharing.open(start=False)
    job = sharing.add(service)

    async def watch(chosen: str) -> None:
        updates = Updates(service)
        for _ in range(2):  # the second time, the first watch has ended
            first, second = updates.stream(chosen), updates.stream(chosen)
            assert job.id in await anext(first)
            assert job.id in await anext(second)
            await first.aclose()
            mark = not service.job(job.id).favourite
            service.history.set_favourite(job.id, mark)
            revision = service.revision
            while revision not in await anext(second):
                pass
            await second.aclose()
            assert not updates._watches
            assert not updates._pages

    for chosen in ("", job.id):
        asyncio.run(asyncio.wait_for(watch(chosen), 60))
    sharing.close()


def test_a_small_picture_is_that_of_the_picture_that_is_there_now(tmp_path: Path) -> None:
    sharing = Sharing(tmp_path)
    service = sharing.open(start=False)
    job = sharing.add(service)
    files = ServedFiles(sharing.outputs, tmp_path)
    pictures = list[bytes]()
    for number, colour in enumerate(("red", "blue", "red")):
        Image.new("RGB", (48, 32), colour).save(sharing.picture)
        service.queue.edit(job.id, sharing.request())
        written = JobFolder(job.folder).input
        assert written.stat().st_mtime_ns, number
        pictures.append(bytes(files.of_job(f"{job.id}/picture.webp").body))
    assert pictures[0] == pictures[2] != pictures[1]

"""Tests of the connections of the server: how long and how many of them are held, and what the log says."""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.web import connections
from app.web.connections import Connection, Repeats, WebServer
from tests.support.asking import ask, form
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import free_port, staged_page

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
UPLOAD = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"


class Site:
    """An application that answers at once, reads an upload to its end, or streams until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.url.path == "/stream":
            return StreamingResponse(self._stream())
        return PlainTextResponse(f"{len(await request.body())} bytes")

    async def _stream(self) -> AsyncIterator[bytes]:
        yield b"begun"
        await asyncio.to_thread(self.released.wait, TIMEOUT)
        yield b"ended"


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.released.set()


class Served:
    def __init__(self, site: Site) -> None:
        self.port = free_port()
        self.server = WebServer(site, "127.0.0.1", self.port)
        self.sockets = list[socket.socket]()
        self.server.start()

    def open(self, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        self.sockets.append(socket.create_connection(("127.0.0.1", self.port), TIMEOUT, (source, 0)))
        self.sockets[-1].sendall(sent)
        return self.sockets[-1]

    def connection(self, client: socket.socket) -> Connection:
        """Return the server's end of a connection, once there is one."""
        ends = list[Connection]()

        def is_there() -> bool:
            connections = cast("list[Connection]", list(self.server.server_state.connections))
            ends.extend(end for end in connections if end.client == client.getsockname())
            return bool(ends)

        wait_until(is_there)
        return ends[0]

    def look(self, client: socket.socket, num_bytes: int = 0) -> None:
        """Have the server look at a connection as it does from time to time, once so many bytes have come."""
        end = self.connection(client)
        wait_until(lambda: end._received_bytes >= num_bytes)
        done = threading.Event()
        end.loop.call_soon_threadsafe(lambda: (end._look(), done.set()))
        assert done.wait(TIMEOUT)


@pytest.fixture
def serve(site: Site) -> Iterator[Callable[[], Served]]:
    places = list[Served]()

    def serve() -> Served:
        places.append(Served(site))
        return places[-1]

    yield serve
    site.released.set()
    for place in places:
        for client in place.sockets:
            client.close()
        place.server.close(TIMEOUT)


def rest(connection: socket.socket) -> bytes:
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def begun(connection: socket.socket, end: bytes = b"begun") -> None:
    received = b""
    while end not in received:
        received += connection.recv(65536)


def test_a_client_that_sends_nothing_of_use_is_cut_off_and_a_stream_is_not(
    serve: Callable[[], Served], site: Site
) -> None:
    served = serve()
    stream = served.open(STREAM)
    begun(stream)
    for _ in range(5):
        served.look(stream)
    for sent in (b"", HEAD):
        client = served.open(sent)
        served.look(client, len(sent))
        assert rest(client) == b""
    for sent in (UPLOAD, UPLOAD + b"x" * 2000):
        client = served.open(sent)
        served.look(client, len(sent))
        client.sendall(b"x" * 999)
        served.look(client, 999)
        assert rest(client) == b""
    used = served.open(HEAD + b"\r\n")
    begun(used, b"0 bytes")
    served.look(used)
    used.sendall(HEAD)  # the beginning of another request
    served.look(used, len(HEAD))
    assert rest(used) == b""
    site.released.set()
    begun(stream, b"ended")


def test_an_upload_may_take_long_if_it_proceeds(serve: Callable[[], Served]) -> None:
    served = serve()
    head = UPLOAD.replace(b"9999", b"12000")
    upload = served.open(head)
    served.look(upload, len(head))
    for _ in range(4):
        upload.sendall(b"x" * 3000)
        served.look(upload, 3000)
    begun(upload, b"12000 bytes")


def test_a_further_connection_takes_the_place_of_the_one_that_waits_longest(
    serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    open_connection = serve().open
    streams = [open_connection(STREAM)]
    begun(streams[0])
    used = open_connection(HEAD + b"\r\n")
    begun(used, b"0 bytes")
    silent = open_connection()
    streams.append(open_connection(STREAM))
    begun(streams[1])
    assert rest(used) == b""  # it was served, and then nothing came
    silent.sendall(HEAD + b"\r\n")
    begun(silent, b"0 bytes")
    streams.append(open_connection(STREAM))
    begun(streams[2])
    assert rest(silent) == b""
    refusal = rest(open_connection())
    assert refusal.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert refusal.endswith(b"Too many connections are open. Close pages or programs, or try again later.\n")


def test_an_address_keeps_a_quarter_of_the_connections_and_this_machine_all(
    serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "is_local", lambda _: False)  # 127.0.0.1 is this server's own address
    open_connection = serve().open
    here = [open_connection() for _ in range(3)]
    there = [open_connection(source="127.0.0.2") for _ in range(3)]
    assert rest(there[0]) == b""
    for connection in (*here, *there[1:], open_connection(source="127.0.0.3")):
        connection.sendall(HEAD + b"\r\n")
        begun(connection, b"0 bytes")


def test_more_files_may_be_open_than_the_system_grants_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 3000]
    monkeypatch.setattr("resource.getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr("resource.setrlimit", lambda _, wanted: limits.__setitem__(slice(None), wanted))
    assert connections.raise_file_limit(2000) == 2000
    assert limits == [2000, 3000]
    assert connections.raise_file_limit(9000) == 3000
    assert limits == [3000, 3000]
    limits[:] = [-1, -1]
    assert connections.raise_file_limit(9000) == 9000
    assert limits == [-1, -1]


def test_what_repeats_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    log, other = logging.getLogger("uvicorn.error"), logging.getLogger("app.jobs")
    caplog.handler.addFilter(repeats := Repeats())
    try:
        for number in range(1234):
            try:
                raise ValueError(number)
            except ValueError:
                log.exception("It failed.\n")
        log.error("Another error %d.", 1)
        for _ in range(3):
            other.warning("A job failed.")
    finally:
        caplog.handler.removeFilter(repeats)
    ends = [" (10 times so far)", " (100 times so far)", " (1000 times so far)"]
    assert [record.getMessage() for record in caplog.records] == [
        "It failed.\n", *(f"It failed.{end}" for end in ends), "Another error 1.", *["A job failed."] * 3,
    ]  # fmt: skip
    assert [bool(record.exc_info) for record in caplog.records[:4]] == [True, False, False, False]


def test_an_upload_that_breaks_off_and_an_unknown_session_are_one_line(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path_factory.mktemp("page")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
    gone = threading.Event()
    caplog.handler.addFilter(lambda record: gone.set() or True if "has gone" in record.msg else True)
    with staged_page(folder) as stand:
        host = urlsplit(stand.url).netloc
        headers, body = form(b"a.png", b"x" * 5000)
        with socket.create_connection(("127.0.0.1", urlsplit(stand.url).port or 0), TIMEOUT) as connection:
            head = f"POST /gradio_api/upload HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9999\r\n"
            connection.sendall(f"{head}Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + body[:900])
        assert gone.wait(TIMEOUT)
        for path in ("queue/data?session_hash=x", "call/jobs_show/x", "call/v2/jobs_show/x"):
            assert "404: Not Found" in ask(stand.url, f"/gradio_api/{path}").text  # the stream ends whole
        assert ask(stand.url).status == 200
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == [
        "A client has gone before the end of what it sent.",
        *["A program asked for a call of a session that is not known."] * 3,
    ]
    assert "Traceback" not in capfd.readouterr().err

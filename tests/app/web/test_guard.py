"""Tables of the guard over a stand-in for the page: which requests pass, and what becomes of both bodies."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from syrupy.assertion import SnapshotAssertion

from app.web.guard import MAX_MESSAGE_BYTES, Guard, Hosts

HOST = "http://127.0.0.1:7860"
UPLOADS, OUTPUTS = Path("/secret/uploads"), Path("/secret/outputs")
UPLOAD_BYTES, AROUND = 1000, 2**16
NAVIGATES = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


class App:
    """The page behind the guard, which answers with the body that it got, or as the test says."""

    def __init__(self) -> None:
        self.answer: Response | None = None
        self.has_room = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        await (self.answer or PlainTextResponse(body))(scope, receive, send)

    def guard(self, *, login: bool = False) -> TestClient:
        uploads: Any = SimpleNamespace(max_bytes=UPLOAD_BYTES, make_room=lambda: self.has_room)
        files: Any = SimpleNamespace(uploads=UPLOADS, outputs=OUTPUTS)
        known: Any = SimpleNamespace(knows=lambda connection: connection.headers.get("x-user") == "anna")
        guard = Guard(
            self, self, hosts=Hosts(local=True), files=files, uploads=uploads, login=known if login else None
        )
        return TestClient(guard, base_url=HOST, raise_server_exceptions=False)


ROUTES = """
    GET / 200 public; HEAD / 200 public; POST / 404; GET /login 200 public; POST /login 200 public
    GET /config 200; GET /config/ 200; HEAD /config 200; POST /config 404; GET /configs 404; GET /logout 200
    GET /favicon.ico 200 public; GET /robots.txt 200 public; POST /robots.txt 404; PUT /login 404
    GET /api/x 200; POST /api/x/y 200; GET /api 404; DELETE /api/x 404; GET /scripts/1/a.js 200
    POST /scripts/1/a.js 404; GET /jobs/1/a 200; GET /jobs/1/a/b 200; GET /jobs/1 404; POST /jobs/1/a 404
    GET /jobs/1/a%2fb 404; GET /jobs/1/a%2Fb 404; GET /scripts/a%2fb/c 200; GET /jobs/1/a%00 404
    GET /gradio_api/info 200; GET /gradio_api/queue/data 200; GET /gradio_api/queue/join 404
    POST /gradio_api/queue/join 200; POST /gradio_api/queue/data 404; GET /gradio_api/call/x/y 200
    GET /gradio_api/call/x 404; POST /gradio_api/call/v2/x 200; POST /gradio_api/call/x/y/z 404
    GET /gradio_api/file=uploads/a 200; GET /gradio_api/file=/etc/a 404; POST /gradio_api/upload 200
    GET /gradio_api/upload 404; POST /gradio_api/cancel 200; POST /gradio_api/run/x 200
    POST /gradio_api/run/x/y 404
"""


@pytest.mark.parametrize("row", [row.strip() for row in ROUTES.replace("\n", ";").split(";") if row.strip()])
def test_a_route_is_there_for_its_methods_and_open_only_if_it_is_public(row: str) -> None:
    method, path, status, *public = row.split()
    app = App()
    body: dict[str, Any] = {"content": b"{}"} if method == "POST" else {}
    assert app.guard().request(method, path, **body).status_code == int(status)
    locked = app.guard(login=True)
    expected = 401 if status == "200" and not public else int(status)
    assert locked.request(method, path, **body).status_code == expected
    assert locked.request(method, path, **body, headers={"x-user": "anna"}).status_code == int(status)


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 127])
def test_a_name_is_as_long_as_a_files(name: str) -> None:
    client = App().guard()
    assert client.get(f"/jobs/1/{name}").status_code == 200
    assert client.get(f"/jobs/1/{name}ü").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", NAVIGATES, 200), ("GET", "/", {**NAVIGATES, "sec-fetch-site": "same-site"}, 200),
        ("POST", "/login", NAVIGATES, 403), ("GET", "/config", NAVIGATES, 403), ("HEAD", "/", NAVIGATES, 403),
        ("GET", "/jobs/1/a", {**NAVIGATES, "sec-fetch-site": "same-site"}, 403),
        ("POST", "/api/x", {"sec-fetch-site": "same-site"}, 403), ("POST", "/api/x", {"origin": HOST}, 200),
        ("GET", "/", {**NAVIGATES, "sec-fetch-mode": "no-cors"}, 403),
        ("POST", "/api/x", {"origin": "https://video.example", "sec-fetch-site": "same-origin"}, 200),
        ("POST", "/api/x", {"origin": "https://video.example", "sec-fetch-site": "none"}, 403),
        ("POST", "/api/x", {"origin": HOST, "sec-fetch-site": "cross-site"}, 403),
        ("POST", "/api/x", {"sec-fetch-site": "none"}, 200),
        ("POST", "/api/x", {"host": "evil.example", "origin": "http://evil.example"}, 421),
    ],
)  # fmt: skip
def test_a_request_of_another_site_opens_the_page_alone(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    body: dict[str, Any] = {"content": b"{}"} if method == "POST" else {}
    assert App().guard().request(method, path, headers=headers, **body).status_code == status


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        ("http://localhost", "LOCALHOST", True), ("http://localhost", "localhost:80", True),
        ("https://localhost", "localhost", True), ("https://localhost", "localhost:80", False),
        ("http://localhost:443", "localhost", False), ("http://[::1]:7860", "[::1]:7860", True),
        ("http://[::2]:7860", "[::1]:7860", False), ("http://a.example:1", "b.example:2", True),
        ("http://b.example:1", "b.example:2", False), ("http://localhost", "local/host", False),
        ("null", "localhost", False),
    ],
)  # fmt: skip
def test_an_origin_is_own_by_name_and_port_or_if_it_is_trusted(origin: str, host: str, is_own: bool) -> None:
    assert Hosts(local=True, trusted={"a.example"}).owns(origin, host) == is_own


def test_which_names_of_the_server_are_its_own() -> None:
    own = [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.:7860",
        "127.8.8.8",
        "[::1]",
        "[::1]:80",
        "TOWER",
        "a.example",
    ]
    addresses = ["10.0.0.7", "0.0.0.0", "[::]", "8.8.8.8:1"]
    others = [
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost@evil.example",
        "localhost/", "", "localhost:x", "localhost:123456", "[::1", "[x]", "xn--evil",
    ]  # fmt: skip
    for is_local, allowed in ((True, own), (False, own + addresses)):
        hosts = Hosts(is_local, frozenset({"tower"}), {"a.example"})
        assert [name for name in own + addresses + others if hosts.allows(name)] == allowed


def test_bodies_have_limits_by_what_they_say_and_by_what_comes() -> None:
    app = App()
    client = app.guard()

    for extra, status in ((0, 200), (1, 413)):
        body = b'"' + b"x" * (MAX_MESSAGE_BYTES - 2 + extra) + b'"'
        assert client.post("/api/x", content=body).status_code == status
        assert client.post("/api/x", content=iter([b"", body])).status_code == status
        upload = b"x" * (UPLOAD_BYTES + AROUND + extra)
        assert client.post("/gradio_api/upload", content=upload).status_code == status
    for length in ("-1", "x", "1e3", ""):
        assert client.post("/api/x", headers={"content-length": length}).status_code == 413
    app.has_room = False
    refused = client.post("/gradio_api/upload", content=b"x")
    assert (refused.status_code, refused.text[:34]) == (507, "The upload cannot be stored now. F")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"a": "\\u00fc \\\\u0000"}', 200), (b'{"a": "\\u0000"}', 400), (b'{"a": "\\\\\\u0000"}', 400),
        (b"NaN", 400), (b"[1e999]", 400), (b'"\\ud800"', 400), (b"{", 400), (b"", 400), (b"\xff", 400),
        (b"[" * 100_000, 400), (b"null", 200),
    ],
)  # fmt: skip
def test_a_message_is_json_that_any_program_can_read(body: bytes, status: int) -> None:
    client = App().guard()
    assert client.post("/api/x", content=body).status_code == status
    if status == 400:
        assert client.post("/api/x", content=body).json()["message"].startswith("The message is not JSON")
        assert "detail" in client.post("/gradio_api/queue/join", content=body).json()
    else:
        assert client.post("/api/x", content=body).content == body


async def parts() -> AsyncIterator[bytes]:
    yield b"data: {}/uploads/a.png\n\n".replace(b"{}", str(UPLOADS.parent).encode())
    yield f"data: {OUTPUTS}\n\n".encode()


def test_answers_of_gradio_name_no_folder_and_programs_send_uploads_by_name() -> None:
    app = App()
    client = app.guard()
    message = {
        "data": [{"path": "uploads/a.png", "meta": 1}, {"path": "uploads/../b", "meta": 1}, "uploads/c"]
    }
    sent = client.post("/gradio_api/queue/join", content=json.dumps(message)).json()
    assert sent == {"data": [{"path": f"{UPLOADS}/a.png", "meta": 1}, {"path": "/secret/b"}, "uploads/c"]}
    assert client.post("/api/x", content=json.dumps(message)).json() == message
    app.answer = JSONResponse({"a": f"{UPLOADS}/a.png", "b": f"{OUTPUTS}/1"}, headers={"x": "1"})
    told = client.get("/gradio_api/info")
    assert told.json() == {"a": "uploads/a.png", "b": "outputs/1"}
    assert told.headers["content-length"] == str(len(told.content))
    assert client.get("/api/x").json()["a"] == f"{UPLOADS}/a.png"
    assert client.head("/gradio_api/info").headers["x"] == "1"
    app.answer = Response(headers={"content-length": "5"}, media_type="application/json")
    assert client.head("/gradio_api/info").headers["content-length"] == "5"  # of the body that GET would have
    app.answer = StreamingResponse(parts(), media_type="text/event-stream")
    assert client.get("/gradio_api/queue/data").text == "data: uploads/a.png\n\ndata: outputs\n\n"
    for status, content, expected in (
        (500, {"error": "Wrong."}, 400), (500, {"error": ""}, 500), (500, {"error": None}, 500),
        (404, {"error": "Wrong."}, 404), (500, {"b": 1, "error": "Wrong."}, 500),
    ):  # fmt: skip
        app.answer = JSONResponse(content, status)
        assert client.get("/gradio_api/info").status_code == expected
        assert client.get("/api/x").status_code == status


def test_whole_answers_to_the_page_and_to_programs(snapshot: SnapshotAssertion) -> None:
    app, lines, usual = App(), list[str](), dict[str, str]()

    def tell(what: str, path: str, *, login: bool = False, **request: Any) -> None:
        method = request.pop("method", "POST")
        answer = app.guard(login=login).request(method, path, **{"content": b"{}"} | request)
        news = {name: value for name, value in answer.headers.items() if usual.get(name) != value}
        lines.append(f"{what}: {answer.status_code} {news} {answer.text}".rstrip())
        usual.update(news)

    cors = {"access-control-allow-origin": "*", "x-frame-options": "ALLOW"}
    app.answer = JSONResponse({}, headers=cors | {"Access-Control-Max-Age": "9"})
    tell("config", "/config", method="GET")
    app.answer, app.has_room = None, False
    tell("two names", "/", method="GET", headers=[*2 * [("host", "localhost")]])
    tell("no room", "/gradio_api/upload")
    for path in ("/api/x", "/gradio_api/run/x"):
        tell(f"{path} answered", path)
        tell("another name", path, headers={"host": "evil.example", "x-forwarded-host": "localhost"})
        tell("another site", path, headers={"sec-fetch-site": "cross-site"})
        tell("nothing there", path, method="DELETE")
        tell("without the password", path, login=True)
        tell("too long", path, headers={"content-length": f"{2**22}"})
        tell("longer than it says", path, content=iter([bytes(MAX_MESSAGE_BYTES), b"x"]))
        tell("no JSON", path, content=b"{")
    assert "\n".join(lines) == snapshot

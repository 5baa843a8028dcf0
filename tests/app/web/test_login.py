"""Tests of the password: what is open without it, how it is tried, and the cookies of those who have it."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from syrupy.assertion import SnapshotAssertion

from app.jobs.service import JobService
from app.web import serving
from app.web.login import LOGIN_ATTEMPTS, LOGIN_SECONDS, Attempts, Login
from tests.support.asking import Answer, ask
from tests.support.pages import free_port


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    with served(tmp_path_factory.mktemp("locked")) as (url, page):
        yield url, page


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, Any]]:
    """Serve a page with a password whose attempts nobody has used up; yield its address and the page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
        service = JobService(folder / "outputs")
        page, url = serving.open_page(service, folder / "outputs", port=free_port(), auth=("anna", "geheim"))
        try:
            yield url, page
        finally:
            serving.close_page(page)


def every_route(app: Any) -> Iterator[tuple[str, str]]:
    for route in app.routes:
        if hasattr(route, "app") and hasattr(route.app, "routes"):
            yield from every_route(route.app)
        if hasattr(route, "original_router"):
            yield from every_route(route.original_router)
        path = re.sub(r"\{(\w+)(:path)?\}", "x", getattr(route, "path", ""))
        for method in getattr(route, "methods", None) or ():
            yield method, path.replace("file=x", "file=/etc/passwd")


def test_without_the_password_only_the_way_to_log_in_is_open(locked: tuple[str, Any]) -> None:
    url, page = locked
    routes = {route for app in page.applications for route in every_route(app)}
    assert len(routes) > 60
    opened, own = set(), set()
    for method, path in sorted(routes):
        answer = ask(url, path, method=method, data={} if method == "POST" else None)
        if path.startswith("/api/"):
            own.add(path)
            assert answer.status == (401 if method in ("GET", "POST", "HEAD") else 404), path
        if answer.status not in (401, 404):
            opened.add(path.rstrip("/") or "/")
    assert opened <= {"/", "/login", "/favicon.ico", "/robots.txt"}
    assert {"/", "/login"} <= opened
    assert {"/api/form_start", "/api/jobs_hold", "/api/live", "/api/openapi.json"} <= own
    assert b"Prompt" not in ask(url).body
    assert ask(url, "/gradio_api/heartbeat/abc").status == 401


def log_in(
    url: str, password: str, user: str = "anna", *, headers: dict[str, str] | None = None, source: str = ""
) -> Answer:
    body = f"username={quote(user)}&password={quote(password)}".encode()
    sent = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
    return ask(url, "/login", method="POST", body=body, headers=sent, source=source)


def test_the_password_opens_and_guessing_is_slowed_down_for_whoever_connects(locked: tuple[str, Any]) -> None:
    url, _ = locked
    right = log_in(url, "geheim")
    token = right.headers["Set-Cookie"].partition(";")[0]
    assert ask(url, "/config", headers={"Cookie": token}).status == 200
    assert b'<a href="logout">Log out</a>' in ask(url, headers={"Cookie": token}).body
    assert ask(url, "/config", headers={"Cookie": f"{token}x"}).status == 401
    statuses = [log_in(url, "falsch", user).status for user in ["anna", "bert"] * (LOGIN_ATTEMPTS // 2)]
    assert set(statuses) == {400}
    assert log_in(url, "geheim").status == 429
    assert ask(url, "/config", headers={"Cookie": token}).status == 200
    # No header makes another address of this.
    assert log_in(url, "geheim", headers={"X-Forwarded-For": "203.0.113.9"}).status == 429
    assert log_in(url, "geheim", source="127.0.1.9").status == 200
    assert ask(url, "/logout", headers={"Cookie": token}).headers["Location"] == "./"
    assert ask(url, "/config", headers={"Cookie": token}).status == 401


class Site:
    """Two servers on one host, each with its login, which tell who knows the password."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.logins = {port: Login("anna", "geheim ", lambda: self.now) for port in (7860, 7861)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        login = self.logins[scope["server"][1]]
        act = {"/login": login.enter, "/logout": login.leave}.get(request.url.path)
        known = PlainTextResponse("known" if login.knows(request) else "not known")
        await (await act(request) if act else known)(scope, receive, send)


def test_the_sessions_of_two_servers_on_one_host(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    names = (f"secret-{number}-" for number in itertools.count(1))
    monkeypatch.setattr("app.web.login.secrets.token_urlsafe", lambda size: next(names) + "x" * size)
    site, lines = Site(), list[str]()
    client, jar = TestClient(site, follow_redirects=False), dict[str, str]()

    def cookie() -> dict[str, str]:
        return {"cookie": "; ".join(f"{name}={value}" for name, value in jar.items())}

    def send(path: str = "", scheme: str = "http", port: int = 7860, **request: Any) -> None:
        url, method = f"{scheme}://127.0.0.1:{port}/{path}", "POST" if path == "login" else "GET"
        client.cookies.clear()
        answer = client.request(method, url, **request | {"headers": request.get("headers", {}) | cookie()})
        name, _, rest = answer.headers.get("set-cookie", "").partition("=")
        jar.update({name: rest.partition(";")[0]} if name else {})
        names = ("location", "set-cookie", "retry-after")
        facts = [answer.headers[name] for name in names if name in answer.headers]
        text = (re.search('<p role="alert">.*</p>', answer.text) or [answer.text.strip()])[0]
        sessions = [len(login._ends) for login in site.logins.values()]
        lines.append(f"{url} {request}: {answer.status_code} {facts} {text} {sessions}")

    def enter(user: str = " anna ", password: str = "geheim ", port: int = 7860, **headers: str) -> None:
        send("login", port=port, data={"username": user, "password": password}, headers=headers)

    send()
    for user, password in (("anna", "geheim"), ("bert", "geheim "), ("anna", "GEHEIM ")):
        enter(user, password)
        enter(user, password, accept="text/html,*/*")
    enter(accept="text/html,*/*")
    send()
    send(port=7861)
    enter(port=7861)
    first = {**jar}
    for headers in ({"origin": "https://x"}, {"x-forwarded-proto": "https"}):
        jar.update(first)
        enter(**headers)
        jar.update(first)  # of a session that has ended
        send()
    send("login", scheme="https", data={"username": "anna", "password": "geheim "})
    jar.clear()
    enter()
    for seconds in (30 * 86400 - 1, 1):
        site.now += seconds
        send()
    enter()  # which forgets the sessions that are over
    enter(port=7861)
    held = {**jar}
    send("logout")
    jar.update(held)
    send()
    send(port=7861)
    for _ in range(LOGIN_ATTEMPTS + 1):
        enter("anna", "wrong")
    del lines[-LOGIN_ATTEMPTS:-1]
    for seconds in (5.5, 0.5):
        site.now += seconds
        enter()
    assert "\n".join(lines) == snapshot


def test_attempts_are_counted_by_address_and_come_back_one_by_one() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    each = LOGIN_SECONDS / LOGIN_ATTEMPTS
    assert [attempts.begin("a") for _ in range(LOGIN_ATTEMPTS + 1)] == [0.0] * LOGIN_ATTEMPTS + [each]
    assert attempts.begin("b") == 0
    now[0] = each
    assert [attempts.begin("a"), attempts.begin("a")] == [0.0, each]
    assert [attempts.begin("b") for _ in range(LOGIN_ATTEMPTS + 1)][-1] > 0
    attempts.succeeded("a")
    assert attempts.begin("b") > 0
    assert [attempts.begin("a") for _ in range(LOGIN_ATTEMPTS)] == [0.0] * LOGIN_ATTEMPTS
    assert sum(attempts.begin(f"c{number}") == 0 for number in range(1000)) == 1000
    # One machine has many addresses of version 6, and counts as one.
    assert [attempts.begin(f"2001:db8::{number:x}") for number in range(LOGIN_ATTEMPTS + 1)][-1] > 0
    assert attempts.begin("2001:db8:0:1::1") == 0
    for _ in range(2):  # of two requests at once
        attempts.succeeded("2001:db8::abcd")
    assert attempts.begin("2001:db8::") == 0

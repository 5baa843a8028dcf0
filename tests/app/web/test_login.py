"""Tests of the password: what is open without it, how it is tried, and the cookies of those who have it."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from app.jobs.service import JobService
from app.web import serving
from app.web.login import LOGIN_ATTEMPTS, LOGIN_SECONDS, Attempts
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


def test_the_password_opens_and_guessing_is_slowed_down(locked: tuple[str, Any]) -> None:
    url, _ = locked
    assert log_in(url, "falsch").status == 400
    right = log_in(url, "geheim")
    assert right.status == 200
    cookies = right.headers.get_all("Set-Cookie")
    assert cookies
    for cookie in cookies:
        assert "httponly" in cookie.lower()
        assert cookie.lower().count("samesite") == 1
        assert "SameSite=lax" in cookie
    token = "; ".join(cookie.partition(";")[0] for cookie in cookies)
    assert ask(url, "/config", headers={"Cookie": token}).status == 200
    assert b'<a href="logout">Log out</a>' in ask(url, headers={"Cookie": token}).body
    assert ask(url, "/config", headers={"Cookie": re.sub("=.*?(;|$)", r"=wrong\1", token)}).status == 401
    statuses = [log_in(url, "falsch", user).status for user in ["anna", "bert"] * (LOGIN_ATTEMPTS // 2)]
    assert set(statuses) == {400}
    refused = log_in(url, "geheim")
    assert refused.status == 429
    assert 0 < int(refused.headers["Retry-After"]) <= LOGIN_SECONDS / LOGIN_ATTEMPTS
    assert ask(url, "/config", headers={"Cookie": token}).status == 200
    # No header makes another address of this.
    assert log_in(url, "geheim", headers={"X-Forwarded-For": "203.0.113.9"}).status == 429
    assert log_in(url, "geheim", source="127.0.1.9").status == 200


def cookies_of(answer: Answer) -> dict[str, str]:
    pairs = (cookie.partition("=") for cookie in answer.headers.get_all("Set-Cookie") or [])
    return {name: rest.lower() for name, _, rest in pairs}


def test_cookies_belong_to_one_server_and_have_an_end(locked: tuple[str, Any], tmp_path: Path) -> None:
    first, _ = locked
    with served(tmp_path) as (second, _):
        answers = [log_in(url, "geheim", source="127.0.5.5") for url in (first, second)]
        names = [[*cookies_of(answer)] for answer in answers]
        ports = [urlsplit(url).port for url in (first, second)]
        assert names == [[f"longtake-session-{port}"] for port in ports]
        ends = [
            cookie.rpartition("max-age=")[2].partition(";")[0] for cookie in cookies_of(answers[0]).values()
        ]
        assert ends == [str(30 * 24 * 3600)]
        both = "; ".join(
            cookie.partition(";")[0]
            for answer in answers
            for cookie in answer.headers.get_all("Set-Cookie") or []
        )
        assert [ask(url, "/config", headers={"Cookie": both}).status for url in (first, second)] == [200, 200]
        left = ask(first, "/logout", headers={"Cookie": both})
        assert (left.status, left.headers["Location"]) == (303, "./")
        assert "max-age=0" in cookies_of(left)[f"longtake-session-{ports[0]}"]
        assert [ask(url, "/config", headers={"Cookie": both}).status for url in (first, second)] == [401, 200]


def test_cookies_are_for_https_alone_behind_https(locked: tuple[str, Any]) -> None:
    url, _ = locked
    origin = url.rstrip("/")
    secure = {"Origin": origin.replace("http:", "https:"), "Sec-Fetch-Site": "same-origin"}
    for headers, is_secure in (({"Origin": origin}, 0), (secure, 1), ({"X-Forwarded-Proto": "https"}, 1)):
        cookies = cookies_of(log_in(url, "geheim", headers=headers, source="127.0.4.4"))
        assert sum("secure" in cookie.split("; ") for cookie in cookies.values()) == is_secure


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
    attempts.succeeded("2001:db8::abcd")
    assert attempts.begin("2001:db8::") == 0

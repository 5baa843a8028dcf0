"""Tests of which clients the page answers, what it serves, and what it accepts."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from diffusers_helper.request import GenerationRequest
from tests.support.asking import ask
from tests.support.pages import Stand, staged_page_with_uploads, write_photo

FILE = "/gradio_api/file="
EVIL = "http://evil.example"


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with staged_page_with_uploads(tmp_path_factory.mktemp("stand")) as stand:
        yield stand


def port(stand: Stand) -> int:
    return urlsplit(stand.url).port or 0


# Names: the hosts that the page accepts as its own


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST.", "127.8.8.8", "[::1]"])
def test_it_answers_to_the_names_of_this_machine(stand: Stand, name: str) -> None:
    assert ask(stand.url, headers={"Host": f"{name}:{port(stand)}"}).status == 200
    assert ask(stand.url, headers={"Host": name}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:7860", "10.0.0.7",
        "0.0.0.0", "localhost@evil.example", "localhost/", "", "localhost:x", "[::1", "xn--evil",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/config", "/assets/x.js", f"{FILE}/etc/passwd"])
def test_it_answers_to_no_other_name(stand: Stand, host: str, path: str) -> None:
    answer = ask(stand.url, path, headers={"Host": host})
    assert answer.status == 421
    assert "--allowed-host" in answer.text


def test_it_answers_to_one_name_at_a_time(stand: Stand) -> None:
    assert ask(stand.url, headers=[("Host", "localhost"), ("Host", "evil.example")]).status in (400, 421)
    assert ask(stand.url, headers={"Host": "evil.example", "X-Forwarded-Host": "localhost"}).status == 421


# Origins: the sites on whose behalf a browser may ask


def handshake(origin: str) -> dict[str, str]:
    return {
        "Origin": origin, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/", "/gradio_api/queue/join", "/gradio_api/queue/data", "/jobs/x/video.mp4"]
)
def test_no_web_socket_is_opened(stand: Stand, path: str) -> None:
    for origin in (EVIL, "null"):
        assert ask(stand.url, path, headers=handshake(origin)).status == 403
    assert ask(stand.url, path, headers=handshake(stand.url.rstrip("/"))).status != 101


@pytest.mark.parametrize(
    "headers", [{"Origin": EVIL}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}], ids=str
)
def test_another_site_hears_no_events_and_sees_no_file(
    stand: Stand, headers: dict[str, str], tmp_path: Path
) -> None:
    photo = write_photo(tmp_path / "photo.png")
    job = stand.service.queue.add(GenerationRequest(image=str(photo), seconds=1))
    file = f"/jobs/{job.id}/input.png"
    assert ask(stand.url, file).status == 200
    stream = {**headers, "Accept": "text/event-stream"}
    for path in (
        file, "/gradio_api/queue/data?session_hash=x", "/gradio_api/heartbeat/x",
        "/gradio_api/call/generate/x", "/gradio_api/upload_progress?upload_id=x", "/api/live",
        f"/api/history/zip?jobs={job.id}",
    ):  # fmt: skip
        answer = ask(stand.url, path, headers=stream)
        assert answer.status == 403, path
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    stand.service.queue.cancel(job.id)


def test_the_pages_own_requests_and_those_of_programs_are_answered(stand: Stand) -> None:
    own = {"Origin": stand.url.rstrip("/")}
    for headers in ({}, own, {**own, "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        answer = ask(stand.url, "/config", headers=headers)
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers


def test_a_link_from_elsewhere_opens_the_page_but_no_frame_holds_it(stand: Stand) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    answer = ask(stand.url, headers=link)
    assert answer.status == 200
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


# Headers


def test_every_answer_has_the_headers(stand: Stand) -> None:
    script = re.search(r"(scripts/[^\"]+/page\.js)", ask(stand.url).text)
    paths = [
        "/", f"/{script[1]}", "/config", "/favicon.ico", "/nowhere", "/scripts/nowhere.js", f"{FILE}/nowhere",
    ]  # fmt: skip
    answers = [ask(stand.url, path) for path in paths]
    answers.append(ask(stand.url, headers={"Host": "evil.example"}))
    answers.append(ask(stand.url, "/gradio_api/run/predict", method="POST", data={"data": []}))
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer.headers["Permissions-Policy"].startswith("camera=(self), microphone=()")
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self' data: blob:;" in policy
        assert "script-src 'self';" in policy
        assert not re.search(r"https?:|\*|unsafe-eval", policy)


# Routes

"""Tests of the layer that translates answers to one browser."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from app.languages import translation as languages
from app.languages.translation import LANGUAGES
from app.ui.page import language_options
from app.web.language import in_language

TEXTS = {"Watch it": "Sieh es an ü", "Start {name}": "{name} starten", "Later </script>": "Später </script>"}
DOCUMENT = (
    '<!doctype html><html lang="en"><script type="application/json" id="texts">{}</script>'
    f"<p>Watch it</p><select>{language_options()}</select></html>"
)
ANSWER: dict[str, Any] = {"label": "Start the film", "state": "running", "prompt": "Watch it", "n": 1.5}


async def events() -> AsyncIterator[str]:
    for beat in (1, 2):
        yield f"data: {json.dumps({'beat': beat, 'now': 'Watch it'})}\n\n"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    for name in ("de.json", "de.script.json"):
        (tmp_path / name).write_text(json.dumps(TEXTS), encoding="utf-8")
    monkeypatch.setattr(languages, "FOLDER", tmp_path)
    languages.translation.cache_clear()
    answers: dict[str, Response] = {
        "/": HTMLResponse(DOCUMENT), "/api/a": JSONResponse(ANSWER, 400), "/page.js": Response("Watch it"),
    }  # fmt: skip
    routes = [Route(path, lambda request: answers[request.url.path]) for path in answers]
    routes.append(
        Route("/api/updates", lambda request: StreamingResponse(events(), media_type="text/event-stream"))
    )
    parts = ('{"label": ', '"Watch it"}')
    routes.append(
        Route("/api/parts", lambda request: StreamingResponse(iter(parts), media_type="application/json"))
    )
    pages = Starlette(routes=routes)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await pages(scope, receive, in_language(scope, send))

    yield TestClient(app)
    languages.translation.cache_clear()


@pytest.mark.parametrize(
    "headers",
    [
        {"accept-language": "de-AT,de;q=0.9,en;q=0.8"}, {"accept-language": "pt, DE;q=0.5"},
        {"accept-language": "en", "cookie": "language=de"},
    ],
)  # fmt: skip
def test_a_browser_gets_its_language(client: TestClient, headers: dict[str, str]) -> None:
    document = client.get("/", headers=headers)
    assert document.headers["content-length"] == str(len(document.content))
    assert '<html lang="de">' in document.text
    assert "<p>Sieh es an ü</p>" in document.text
    assert '<option value="de" selected lang="de">Deutsch</option>' in document.text
    assert json.loads(document.text.partition('id="texts">')[2].partition("</script>")[0]) == TEXTS
    answer = client.get("/api/a", headers=headers)
    assert answer.status_code == 400
    assert answer.json() == {**ANSWER, "label": "the film starten"}
    updates = client.get("/api/updates", headers=headers).text.split("\n\n")[:2]
    assert [json.loads(update.removeprefix("data: ")) for update in updates] == [
        {"beat": beat, "now": "Sieh es an ü"} for beat in (1, 2)
    ]
    assert client.get("/page.js", headers=headers).text == "Watch it"
    assert client.get("/api/parts", headers=headers).json() == {"label": "Sieh es an ü"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"accept-language": "en-GB"},
        {"cookie": "language=../de"},
        {"cookie": "language=en", "accept-language": "de"},
    ],
)
def test_all_others_get_the_same_bytes_as_ever(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/", headers=headers).text == DOCUMENT
    assert client.get("/api/a", headers=headers).json() == ANSWER


def test_every_language_is_offered_in_its_own_words() -> None:
    for code, name in LANGUAGES.items():
        assert f'<option value="{code}" lang="{code}">{name}</option>' in language_options()

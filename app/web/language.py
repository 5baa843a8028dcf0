"""The page in the language of whoever reads it: a layer that translates the answers to one browser."""

from __future__ import annotations

import json

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.languages.translation import COOKIE, Translation, negotiated, translation

_DOCUMENT, _ANSWER, _UPDATES = "text/html", "application/json", "text/event-stream"
_EVENT = b"data: "


class Translated:
    """An application whose documents, answers and updates are in a browser's language."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = HTTPConnection(scope)
        # Browsers send the languages that they accept in the order of their user's liking.
        accepted = connection.headers.get("accept-language", "").split(",")
        language = negotiated([connection.cookies.get(COOKIE, ""), *map(str.strip, accepted)])
        if language != "en":
            send = _Answer(send, translation(language)).send
        await self._app(scope, receive, send)


class _Answer:
    def __init__(self, send: Send, translation: Translation) -> None:
        self._send, self._translation = send, translation
        self._start: Message = {}
        self._kind = ""
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            self._kind = headers.get("content-type", "").partition(";")[0]
            if self._kind in (_DOCUMENT, _ANSWER):
                self._start = message  # its length is not yet known
                return
        elif self._kind == _UPDATES and message.get("body", b"").startswith(_EVENT):
            event = self._answer(message["body"].removeprefix(_EVENT))
            message = {**message, "body": _EVENT + event + b"\n\n"}
        elif self._start:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            body = self._document() if self._kind == _DOCUMENT else self._answer(self._body)
            MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(body))
            await self._send(self._start)
            message = {"type": "http.response.body", "body": body}
        await self._send(message)

    def _answer(self, body: bytes) -> bytes:
        return json.dumps(self._translation.answer(json.loads(body)), ensure_ascii=False).encode()

    def _document(self) -> bytes:
        language = self._translation.language
        markup = self._translation.markup(self._body.decode())
        markup = markup.replace('<html lang="en"', f'<html lang="{language}"', 1)
        markup = markup.replace(f'<option value="{language}"', f'<option value="{language}" selected', 1)
        return markup.replace('id="texts">{}', f'id="texts">{self._translation.script}', 1).encode()

"""The sending of answers with Longtake's headers, and without what they should not reveal."""

from __future__ import annotations

import json
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Send

from app.web.folder_names import FolderNames

# Bars have their lengths in their markup, so styles on elements cannot be banned.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self'; connect-src 'self' data: blob:; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=(), serial=()",
}
_CORS = re.compile(rb"access-control-.*", re.IGNORECASE)


class Stored:
    """The sender of gradio's answer to an upload, unless that is a failure of the server."""

    def __init__(self, send: Send) -> None:
        self._send, self.has_failed = send, False

    async def __call__(self, message: Message) -> None:
        self.has_failed = self.has_failed or message.get("status") == 500
        if not self.has_failed:
            await self._send(message)


class Outgoing:
    """The sender of answers, with Longtake's headers and with folders replaced by their names.

    Args:
        send: Sends to the client.
        names: The names of the folders.
        is_last: Whether the connection closes after the answer. A program that sends another call just when
            uvicorn closes an idle connection would lose it.
    """

    def __init__(self, send: Send, names: FolderNames, *, is_last: bool = False) -> None:
        self._send, self._names, self._is_last = send, names, is_last
        self._held: tuple[Message, list[bytes]] | None = None
        self._is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._set_headers(message)
            kind = Headers(raw=message["headers"]).get("content-type", "")
            self._is_stream = kind.startswith("text/event-stream")
            if kind.startswith("application/json"):
                self._held = (message, [])  # held until its length is known
                return
        elif self._held is not None:
            await self._hold(message)
            return
        elif self._is_stream:  # each message holds complete events
            message = {**message, "body": self._names.outward(message.get("body", b""))}
        await self._send(message)

    async def _hold(self, message: Message) -> None:
        assert self._held is not None
        start, parts = self._held
        parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        self._held = None
        body = self._names.outward(b"".join(parts))
        if start["status"] == 500 and _is_refusal(body):
            start["status"] = 400
        headers = MutableHeaders(scope=start)
        if "content-length" in headers and body:  # an answer to HEAD has a length but no body
            headers["content-length"] = str(len(body))
        await self._send(start)
        await self._send({**message, "body": body})

    def _set_headers(self, message: Message) -> None:
        message["headers"] = [item for item in message.get("headers", []) if not _CORS.fullmatch(item[0])]
        headers = MutableHeaders(scope=message)
        for name, value in _HEADERS.items():
            headers[name] = value
        if self._is_last:
            headers["connection"] = "close"


def _is_refusal(body: bytes) -> bool:
    """Return whether gradio's answer with the status 500 is an error that an endpoint raised for its caller.

    Of all other errors, gradio tells no text.
    """
    try:
        return bool(json.loads(body).get("error"))
    except (ValueError, AttributeError):
        return False

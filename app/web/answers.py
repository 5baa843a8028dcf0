"""The sending of gradio's answers with Longtake's headers, and without what they should not reveal."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Send

from app.ui import scripts
from app.web.folder_names import FolderNames

_SCRIPT = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
# Gradio sets styles on elements and turns text of its components into functions, so neither can be banned.
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'{inline}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' data: blob:; worker-src 'self' blob:; manifest-src 'self'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=(), serial=()",
}
# Gradio's page and messages have these types; all other answers are the same for everyone.
_MESSAGES = ("text/html", "application/json", "text/event-stream")
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
    """The sender of gradio's answers, with Longtake's headers and with folders replaced by their names."""

    def __init__(self, send: Send, names: FolderNames) -> None:
        self._send, self._names = send, names
        self._held: tuple[Message, list[bytes]] | None = None
        self._is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            _set_headers(message)
            headers = Headers(raw=message["headers"])
            kind = headers.get("content-type", "")
            if kind.startswith(_MESSAGES) and "content-encoding" not in headers:
                self._is_stream = kind.startswith("text/event-stream")
                if not self._is_stream:
                    self._held = (message, [])  # held until its length and its scripts are known
                    return
        elif message["type"] == "http.response.body":
            if self._held is not None:
                await self._hold(message)
                return
            if self._is_stream:  # each message holds complete events
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
        if headers.get("content-type", "").startswith("text/html"):
            body = body.replace(b"<head>", b"<head>" + scripts.head(), 1)
            headers["content-security-policy"] = _policy(body)
        if "content-length" in headers and body:  # an answer to HEAD has a length but no body
            headers["content-length"] = str(len(body))
        await self._send(start)
        await self._send({**message, "body": body})


def _set_headers(message: Message) -> None:
    message["headers"] = [item for item in message.get("headers", []) if not _CORS.fullmatch(item[0])]
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers[name] = value
    headers["content-security-policy"] = _policy(b"")
    cookies = headers.getlist("set-cookie")
    if cookies:
        del headers["set-cookie"]
        for cookie in cookies:
            kept = re.sub(r"(?i);\s*samesite=\w+", "", cookie)
            headers.append("set-cookie", f"{kept}; SameSite=Lax")


def _policy(document: bytes) -> str:
    """Return a content security policy that allows, of inline scripts, only those in `document`."""
    digests = (hashlib.sha256(script).digest() for script in _SCRIPT.findall(document))
    inline = "".join(f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return _POLICY.format(inline=inline)


def _is_refusal(body: bytes) -> bool:
    """Return whether gradio's answer with the status 500 is an error that an endpoint raised for its caller.

    Of all other errors, gradio tells no text.
    """
    try:
        return bool(json.loads(body).get("error"))
    except (ValueError, AttributeError):
        return False

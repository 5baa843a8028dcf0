"""The outermost layer of the web server, which decides which requests are answered, and completes answers.

Gradio serves far more routes than this page needs. A route that is not listed here is not found. Answers get
Longtake's headers, and lose what they should not reveal.
"""

import asyncio
import ipaddress
import json
import logging
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.ui import scripts
from app.ui.errors import PAGE_CALLS, PROGRAM_CALLS, UPLOAD, refusal_answer
from app.web.folder_names import FolderNames
from app.web.language import in_language
from app.web.login import Login
from app.web.rewriting import EVENTS, Rewritten
from app.web.served_files import ServedFiles, UploadRoom

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
_REFUSAL = re.compile(rb"\{\"error\":\s*\"[^\"]")
_CORS = re.compile(rb"access-control-.*", re.IGNORECASE)
MAX_MESSAGE_BYTES = 2 * 2**20  # the limit for all requests but uploads; settings and a prompt are a few kB
_AROUND_FILES = 2**16  # the bytes that a form may have besides its files

_GRADIO = PROGRAM_CALLS.rstrip("/")
_JOBS = "/jobs/"
_FILES = f"{_GRADIO}/file="
# These routes are needed by the login page, or reveal nothing.
_PUBLIC = re.compile(r"/|/login|/favicon\.ico|/robots\.txt")
_READ = re.compile(
    rf"/config|/logout|{PAGE_CALLS}.+|/{scripts.ROUTE}/.+|{_JOBS}[^/]+/.+"
    rf"|{_GRADIO}/(info|openapi\.json|queue/(data|status)|file=uploads/.+|heartbeat/[^/]+|call/(v2/)?[^/]+/[^/]+)"
)
_WRITE = re.compile(
    rf"/login|{PAGE_CALLS}.+|{_GRADIO}/(queue/join|upload|cancel|reset|run/[^/]+|api/[^/]+|call/(v2/)?[^/]+)"
)
_NUL = re.compile(rb"(?<!\\)(\\\\)*\\u0000")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(\d{1,5}))?", re.IGNORECASE)
_OTHER_NAME = ("Longtake does not answer to this name.", "Start it with --allowed-host NAME if it should.")
_NOT_USABLE = (
    "The message is not JSON with whole characters and finite numbers, or nested too deep.",
    "Type its texts anew.",
)

_log = logging.getLogger(__name__)


def _with_headers(send: Send, *, is_last: bool) -> Send:
    """Return a sender of answers with Longtake's headers.

    After the last answer the connection closes: a program that sends another call just when uvicorn closes an
    idle connection would lose it.
    """

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [item for item in message.get("headers", []) if not _CORS.fullmatch(item[0])]
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS | ({"connection": "close"} if is_last else {}))
        await send(message)

    return sent


@dataclass
class Hosts:
    """The host names and addresses that the page answers to. Refusing all others prevents DNS rebinding.

    Attributes:
        local: Whether only this machine can reach the server.
        trusted: Names of a reverse proxy or of --share, whose pages may send requests although it changes
            the Host header.
    """

    local: bool
    names: frozenset[str] = frozenset()
    trusted: set[str] = field(default_factory=set[str])

    def allows(self, host: str) -> bool:
        """Any address is allowed if others reach the server, since only names can be pointed elsewhere."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().rstrip(".")
        if name == "localhost" or name in self.names or name in self.trusted:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return address.is_loopback or not self.local

    def owns(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        usual_port = {"http": ":80", "https": ":443"}.get(parts.scheme, "")  # which proxies may add
        return parts.netloc == host.lower().removesuffix(usual_port) or parts.hostname in self.trusted


class Guard:
    def __init__(
        self,
        page: ASGIApp,
        gradio: ASGIApp,
        *,
        hosts: Hosts,
        files: ServedFiles,
        uploads: UploadRoom,
        login: Login | None = None,
    ) -> None:
        self._page, self._gradio = page, gradio
        self._hosts, self._uploads, self._login = hosts, uploads, login
        self._names = FolderNames(files.uploads, files.outputs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # Gradio's queue begins and ends with the server
            await self._gradio(scope, receive, send)
            return
        outgoing = _with_headers(send, is_last=scope["method"] == "POST")
        if is_gradio(scope["path"]):
            outgoing = Rewritten(outgoing, ("application/json", EVENTS), self._without_folders)
        else:
            outgoing = in_language(scope, outgoing)
        try:
            await self._answer(scope, receive, outgoing)
        except ClientDisconnect:
            _log.warning("A client has gone before the end of what it sent.")
        except RuntimeError as error:
            # Gradio's streams raise an error for a session that they do not know after they have told of it.
            if not isinstance(error.__cause__, HTTPException):
                raise
            _log.warning("A program asked for a call of a session that is not known.")
            await send({"type": "http.response.body"})

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._gradio if is_gradio(scope["path"]) else self._page)(scope, receive, send)

    def _without_folders(self, start: Message, _: str, body: bytes) -> bytes:
        if start["status"] == 500 and _REFUSAL.match(body):
            start["status"] = 400  # of errors that no endpoint raised for its caller, gradio tells no text
        return self._names.outward(body)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        scope = {**scope, "headers": [item for item in scope["headers"] if item[0] != b"accept-encoding"]}
        refusal = self._refusal(scope, path)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif path == UPLOAD:
            await self._upload(scope, receive, send)
        elif path == "/login":
            await self._app(scope, _bounded(receive, MAX_MESSAGE_BYTES), send)
        elif scope["method"] == "POST":
            await self._pass_on(path, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _pass_on(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await Request(scope, _bounded(receive, MAX_MESSAGE_BYTES)).body()
            message = _read(body)
            if path.startswith(_GRADIO):
                body = json.dumps(self._names.inward(message)).encode()
        except MultiPartException as error:
            await refusal_answer(path, 413, error.message)(scope, receive, send)
            return
        except (ValueError, RecursionError):
            await refusal_answer(path, 400, *_NOT_USABLE)(scope, receive, send)
            return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def received() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, received, send)

    def _refusal(self, scope: Scope, path: str) -> Response | None:
        headers, method = Headers(scope=scope), scope["method"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.allows(hosts[0]):
            return refusal_answer(path, 421, *_OTHER_NAME)
        if self._is_foreign(headers, method, path):
            sentence = "Another site asked for this; only Longtake's own page and programs may."
            return refusal_answer(path, 403, sentence)
        public = _PUBLIC.fullmatch(path) is not None
        if method in ("GET", "HEAD"):
            is_known = public or _READ.fullmatch(path) is not None
        else:
            is_known = method == "POST" and _WRITE.fullmatch(path) is not None
        # No file has a longer name.
        is_known = is_known and "\0" not in path and max(map(len, path.encode().split(b"/"))) < 256
        # The name of a file has no slash, not even an encoded one.
        if not is_known or (path.startswith(_JOBS) and b"%2f" in scope["raw_path"].lower()):
            return refusal_answer(path, 404, "There is nothing here.")
        if self._login and not public and not self._login.knows(HTTPConnection(scope)):
            return refusal_answer(path, 401, "Log in first.")
        limit = self._uploads.max_bytes + _AROUND_FILES if path == UPLOAD else MAX_MESSAGE_BYTES
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            return refusal_answer(path, 413, f"This is too large; at most {limit // 2**20} MiB are accepted.")
        return None

    def _is_foreign(self, headers: Headers, method: str, path: str) -> bool:
        """Return whether a page of another site caused the request. Programs send neither header."""
        site = headers.get("sec-fetch-site")
        if site in ("cross-site", "same-site"):
            # A link to the page does no harm.
            return not (method == "GET" and path == "/" and headers.get("sec-fetch-mode") == "navigate")
        origin = headers.get("origin")
        # Behind a proxy, origin and host may differ, but the browser still reports "same-origin".
        return origin is not None and site != "same-origin" and not self._hosts.owns(origin, headers["host"])

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await asyncio.to_thread(self._uploads.make_room):
            await self._app(scope, _bounded(receive, self._uploads.max_bytes + _AROUND_FILES), send)
        else:
            remedy = "Free some space on the disk, or try again later."
            refusal = refusal_answer(UPLOAD, 507, "The upload cannot be stored now.", remedy)
            await refusal(scope, receive, send)


def is_gradio(path: str) -> bool:
    calls = (PROGRAM_CALLS, "/config", "/favicon.ico", "/robots.txt")
    return path.startswith(calls) and not path.startswith(_FILES)


def _read(body: bytes) -> Any:
    message: Any = json.loads(body)
    # Half a pair of surrogates cannot be encoded, and no file or process takes NUL.
    if _NUL.search(json.dumps(message, ensure_ascii=False, allow_nan=False).encode()):
        raise ValueError("NUL")
    return message


def _bounded(receive: Receive, limit: int) -> Receive:
    """Return a receiver that raises an error when a body exceeds the limit. Gradio cleans up after it."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise MultiPartException(f"This exceeds the maximum allowed size of {limit} bytes.")
        return message

    return counted

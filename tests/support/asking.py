"""A client for raw HTTP requests, also those that well-behaved clients would not send."""

import contextlib
import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.jobs import TIMEOUT


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


def ask(
    url: str,
    path: str = "/",
    *,
    method: str = "GET",
    headers: Iterable[tuple[str, str]] | dict[str, str] = (),
    body: bytes | Iterable[bytes] | None = None,
    data: Any = None,
    source: str = "",
) -> Answer:
    """Send one request exactly as described, and return the answer.

    `Host` is the server's own unless it is given. `data` is sent as JSON, and an iterable `body` in chunks
    without a length. `source` is the address from which the request is sent.
    """
    given = list(headers.items()) if isinstance(headers, dict) else list(headers)
    if data is not None:
        body, given = json.dumps(data).encode(), [*given, ("Content-Type", "application/json")]
    origin = (source, 0) if source else None
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT, source_address=origin)
    try:
        has_host = any(name.lower() == "host" for name, _ in given)
        connection.putrequest(method, path, skip_host=has_host, skip_accept_encoding=True)
        for name, value in given:
            connection.putheader(name, value)
        is_chunked = body is not None and not isinstance(body, bytes)
        if is_chunked:
            connection.putheader("Transfer-Encoding", "chunked")
        elif body is not None and not any(name.lower() == "content-length" for name, _ in given):
            connection.putheader("Content-Length", str(len(body)))  # pyright: ignore[reportArgumentType]
        # The server may refuse a request before all of it is sent; the answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.endheaders(body, encode_chunked=is_chunked)
        response = connection.getresponse()
        endless = path.startswith("/gradio_api/heartbeat") and response.status == 200
        return Answer(response.status, response.msg, b"" if endless else response.read())
    finally:
        connection.close()


def form(name: bytes, content: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of an upload of one file."""
    head = b'--lt\r\nContent-Disposition: form-data; name="files"; filename="' + name + b'"\r\n'
    body = head + b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--lt--\r\n"
    return {"Content-Type": "multipart/form-data; boundary=lt"}, body

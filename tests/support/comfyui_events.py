"""The messages that ComfyUI sends to its page over a websocket: progress, and previews."""

import base64
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import Any
from urllib.parse import urlsplit

_TEXT, _BINARY = 1, 2
CLIENT = "tests"


class Messages:
    """What has arrived so far.

    Attributes:
        steps: The numbers of the steps that were shown as done, with their total.
        previews: The binary messages: pictures, and texts below nodes.
        others: The types of all messages.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.previews: list[bytes] = []
        self.others: list[str] = []

    def add(self, kind: int, content: bytes) -> None:
        if kind == _BINARY:
            self.previews.append(content)
        elif kind == _TEXT:
            message: Any = json.loads(content)
            self.others.append(message["type"])
            if message["type"] == "progress":
                self.steps.append((message["data"]["value"], message["data"]["max"]))


@contextmanager
def listening(address: str) -> Iterator[Messages]:
    """Collect the messages for `CLIENT` while inside."""
    place = urlsplit(address)
    assert place.hostname
    assert place.port
    messages, connection = Messages(), socket.create_connection((place.hostname, place.port))
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET /ws?clientId={CLIENT} HTTP/1.1\r\nHost: {place.netloc}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    stream = connection.makefile("rb")
    assert b" 101 " in stream.readline()
    while stream.readline().strip():
        pass

    def read() -> None:
        with suppress(OSError, ValueError):
            while frame := _frame(stream):
                messages.add(*frame)

    reader = threading.Thread(target=read, name="websocket", daemon=True)
    reader.start()
    try:
        yield messages
    finally:
        connection.shutdown(socket.SHUT_RDWR)
        reader.join(10)
        stream.close()
        connection.close()


def _frame(stream: BufferedReader) -> tuple[int, bytes] | None:
    """Return the kind and the content of the next message, or None at the end of the connection."""
    head = stream.read(2)
    if len(head) < 2:
        return None
    length = head[1] & 0x7F
    if length >= 126:
        length = int.from_bytes(stream.read(2 if length == 126 else 8))
    return head[0] & 0x0F, stream.read(length)

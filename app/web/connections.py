"""uvicorn's server in a thread, with bounds for the number of connections and the wait for a request."""

import logging
import os
import threading
import traceback
from asyncio import BaseTransport, Transport
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any, Self, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.web.addresses import is_local, network_of
from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine.limits import raise_file_limit

MOST_CONNECTIONS = 4000
LOOK_SECONDS = 15.0
_LEAST_BODY_BYTES = 1000  # of an upload, between two looks
_FILES_A_CONNECTION = 2  # itself, and the video that is sent
_OTHER_FILES = 256
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Retry-After: 10\r\n\r\nToo many connections are open. Close pages or programs, or try again later.\n"
)
_log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """A connection. It is closed if its client has sent nothing of use between two looks.

    One too many takes the place of the one that has waited longest for a request; if none waits, it is
    refused. Each network may have a quarter of all, so that it does not keep others out, except this machine,
    from which all visitors behind a proxy or a tunnel come.
    """

    def __init__(self, most: int, **options: Any) -> None:
        super().__init__(**options)
        self._most, self._network = most, ""
        self._idle_since = self.loop.time()
        self._received_bytes = 0  # since the last look
        self._last_state: tuple[object, bool] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request has come whole with its headers since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        client, server = (address[0] if address else "localhost" for address in (self.client, self.server))
        self._network = "" if client == server or is_local(client) else network_of(client)
        everybody = cast("set[Self]", self.connections)
        if len(everybody) > self._most:
            self._take_place(everybody)
        elif self._network:
            neighbours = [other for other in everybody if other._network == self._network]
            if len(neighbours) > self._most // 4:
                self._take_place(neighbours)
        self._look()

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _take_place(self, others: Collection[Self]) -> None:
        idle = [other for other in others if other.is_idle and other is not self]
        if idle:
            leaving = min(idle, key=lambda other: other._idle_since)
            leaving.transport.abort()
        else:
            _log.warning("All connections are in use, so one is refused.")
            leaving = self
            self.transport.write(_FULL)
            self.transport.close()
        self.connections.discard(leaving)  # at once, since many more may be accepted before it is closed

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        state = (self.cycle, self.is_idle)
        is_sending = self.cycle and self.cycle.more_body and not self.flow.read_paused
        if state == self._last_state and (
            self.is_idle or (is_sending and self._received_bytes < _LEAST_BODY_BYTES)
        ):
            self.transport.close()
        self._last_state, self._received_bytes = state, 0
        self.loop.call_later(LOOK_SECONDS, self._look)


class Repeats(logging.Filter):
    """Lets the first record of a kind pass, and then the 10th, the 100th and so on with their number."""

    _SOURCES = ("uvicorn", "asyncio", "app.web")

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counter[tuple[str, str, str]]()

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(self._SOURCES):
            return True
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__) if error else []
        place = f"{type(error).__name__} {frames[-1].filename} {frames[-1].lineno}" if frames else ""
        kind = record.name, str(record.msg), place
        self._counts[kind] += 1
        count = self._counts[kind]
        if count > 1:
            record.msg, record.args = f"{record.getMessage().strip()} ({count} times so far)", ()
            record.exc_info = record.exc_text = None
        return str(count).strip("0") == "1"


class WebServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        files = raise_file_limit(_OTHER_FILES + _FILES_A_CONNECTION * MOST_CONNECTIONS)
        most = min(MOST_CONNECTIONS, max(_OTHER_FILES, files - _OTHER_FILES) // _FILES_A_CONNECTION)
        config = uvicorn.Config(
            app, host=host, port=port, ws="none", lifespan="on", log_config=None, access_log=False,
            http=cast("type[H11Protocol]", partial(Connection, most)),
            # Otherwise anyone who connects from this machine, like all visitors behind a proxy, could write
            # another address into a header. For a trusted proxy, a user sets uvicorn's own variable.
            forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", ""),
        )  # fmt: skip
        super().__init__(config)
        self._thread = threading.Thread(target=self.run, name="web", daemon=True)

    def start(self) -> None:
        self._thread.start()
        while not self.started:
            self._thread.join(0.01)
            if not self._thread.is_alive():
                raise LongtakeError("The web server has not started.", "The lines above say why.")

    def close(self, seconds: float) -> None:
        self.should_exit = True
        self._thread.join(seconds)

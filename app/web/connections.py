"""uvicorn's server in a thread, with a cap for the connections and a time-out for those that bring nothing.

An answer, such as a stream of updates or the wait for a video, may take as long as it likes.
"""

from __future__ import annotations

import os
import threading
from asyncio import BaseTransport, Transport
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine.limits import raise_file_limit

MOST_CONNECTIONS = 4000
LOOK_SECONDS = 15.0
_LEAST_BODY_BYTES = 1000  # of an upload, between two looks
_FILES_A_CONNECTION = 4  # itself, the video that is sent, and a share of the other files
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Retry-After: 10\r\n\r\nToo many connections are open. Close pages or programs, or try again later.\n"
)


class Connection(H11Protocol):
    """A connection. It is refused above the cap, and closed if nothing of use came between two looks."""

    def __init__(self, most: int, **options: Any) -> None:
        super().__init__(**options)
        self._most = most
        self._received_bytes = 0  # since the last look
        self._last_state: tuple[object, bool] | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        if len(self.connections) > self._most:
            self.transport.write(_FULL)
            self.transport.close()
        self._look()

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        super().data_received(data)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        is_idle = self.cycle is None or self.cycle.response_complete  # no request has come whole since
        is_sending = self.cycle and self.cycle.more_body and not self.flow.read_paused
        state = (self.cycle, is_idle)
        if state == self._last_state and (
            is_idle or (is_sending and self._received_bytes < _LEAST_BODY_BYTES)
        ):
            self.transport.close()
        self._last_state, self._received_bytes = state, 0
        self.loop.call_later(LOOK_SECONDS, self._look)


class WebServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        files = raise_file_limit(_FILES_A_CONNECTION * MOST_CONNECTIONS)
        most = min(MOST_CONNECTIONS, files // _FILES_A_CONNECTION)
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
        """Close the server, without waiting for longer than this for clients that keep a connection open."""
        self.should_exit = True
        self._thread.join(seconds)

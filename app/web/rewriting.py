"""Answers that are rewritten on their way to a client."""

from collections.abc import Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Send

EVENTS = "text/event-stream"


class Rewritten:
    """A sender that rewrites answers of some types: each message of events, or the whole answer.

    `rewrite` gets the answer's start, which it may change, its type and its body, and returns another body.
    """

    def __init__(
        self, send: Send, types: Collection[str], rewrite: Callable[[Message, str, bytes], bytes]
    ) -> None:
        self._send, self._types, self._rewrite = send, types, rewrite
        self._start: Message = {}
        self._type = ""
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            self._type = Headers(raw=message["headers"]).get("content-type", "").partition(";")[0]
            if self._type in self._types and self._type != EVENTS:
                return  # until its length is known
        elif self._type in self._types:
            self._body += message.get("body", b"")
            if self._type != EVENTS and message.get("more_body", False):
                return
            body = self._rewrite(self._start, self._type, self._body) if self._body else b""
            if self._type != EVENTS:
                headers = MutableHeaders(scope=self._start)
                if "content-length" in headers and body:  # an answer to HEAD has a length but no body
                    headers["content-length"] = str(len(body))
                await self._send(self._start)
            message, self._body = {**message, "body": body}, b""
        await self._send(message)

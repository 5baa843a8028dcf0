"""Gradio's server, in front of which the guard stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr
from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp, Receive, Scope, Send

from app.ui.api import add_error_handlers
from diffusers_helper import __version__

API_DOCUMENT = "/api/openapi.json"

# With gradio's own pauses of 1 and 10 milliseconds between two checks for calls, an idle server uses 6 % of a
# core. The page's own calls do not wait in this queue.
_CALL_SECONDS, _PROGRESS_SECONDS = 1.0, 2.0


class GuardedServer(gr.Server):
    """Gradio's engine for named endpoints, with the page's own routes.

    Attributes:
        routers: The routers of the page's own calls.
        guard: Answers every request, or passes it on to `unguarded`. A middleware would run behind those of
            gradio, which answer some requests themselves.
    """

    guard: ASGIApp
    local_url: str = ""

    def __init__(self) -> None:
        super().__init__(title="Longtake", openapi_url=API_DOCUMENT, docs_url=None, redoc_url=None)
        self.guard = self.unguarded
        self.routers = list[APIRouter]()
        add_error_handlers(self)

    def openapi(self) -> dict[str, Any]:
        """Describe the page's own calls; Gradio describes those of programs at `/gradio_api/info`."""
        routes = [route for router in self.routers for route in router.routes]
        return get_openapi(title=self.title, version=__version__, routes=routes)

    def add_routers(self, routers: Sequence[APIRouter]) -> None:
        """Add the routes of the page's own calls."""
        self.routers += routers
        for router in routers:
            self.include_router(router)

    async def unguarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.guard(scope, receive, send)

    def rest(self) -> None:
        """Let gradio look for calls less often. It has no setting for this."""
        queue = self.get_blocks()._queue
        queue.sleep_when_free = _CALL_SECONDS
        queue.progress_update_sleep_when_free = _PROGRESS_SECONDS  # no endpoint reports such progress

    def close(self) -> None:
        """Stop serving. The tunnel of --share ends with the program."""
        self.get_blocks().close(verbose=False)

"""Gradio, which serves the endpoints of programs and takes uploads."""

import logging
import secrets
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
from fastapi import FastAPI, Request
from gradio import networking
from gradio.route_utils import FnIndexInferError
from starlette.responses import Response

from app.jobs.storage.database import DATABASE_FOLDER
from app.ui.api import Endpoint, error_handlers
from app.ui.errors import PROGRAM_CALLS, refusal_answer
from diffusers_helper.errors import InputError

# With gradio's own pauses of 1 and 10 milliseconds between two checks for calls, an idle server uses 6 % of a
# core. The page's own calls do not wait in this queue.
_CALL_SECONDS, _PROGRESS_SECONDS = 1.0, 2.0
_log = logging.getLogger(__name__)
_PLACES = 100_000  # of calls that wait for their videos. Jobs have a queue of their own.

# What Gradio raises if a call's endpoint or the names of its arguments do not exist.
_MISFITS = (FnIndexInferError, KeyError, TypeError)


async def _refuse_misfit(request: Request, _: Exception) -> Response:
    sentence = "There is no endpoint of this name with these arguments."
    return refusal_answer(request.url.path, 400, sentence, f"Compare them with {PROGRAM_CALLS}info.")


class Calls(gr.Blocks):
    """The endpoints, as an engine that is rested: it looks for calls less often than Gradio would."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        super().__init__(mode="server")
        with self:
            for endpoint in endpoints:
                # Jobs have their own queue: a call that waits in Gradio's must not hold up another.
                gr.api(
                    endpoint.function, api_name=endpoint.name, api_description=endpoint.description,
                    queue=endpoint.is_queued, concurrency_limit=None,
                )  # fmt: skip
        queue = self._queue
        queue.max_thread_count = _PLACES
        queue.sleep_when_free = _CALL_SECONDS
        queue.progress_update_sleep_when_free = _PROGRESS_SECONDS  # no endpoint reports such progress

    async def process_api(
        self, block_fn: Any, inputs: list[Any], *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        """Answer a call. One with too few arguments, for which Gradio has no words, is refused."""
        names = list(signature(block_fn.fn).parameters)
        if len(inputs) < len(names):
            name = names[len(inputs)]
            raise gr.Error(str(InputError(f"{name} is missing.", f"Pass {name}.")), print_exception=False)
        return await super().process_api(block_fn, inputs, *arguments, **options)

    def application(self, outputs: Path, max_file_bytes: int) -> FastAPI:
        return gr.mount_gradio_app(
            FastAPI(openapi_url=None), self, path="/", show_error=False, ssr_mode=False, run_history=False,
            mcp_server=False, max_file_size=max_file_bytes,
            # From here gradio copies the answer of /generate; its route for files is closed.
            allowed_paths=[str(outputs)], blocked_paths=[str(outputs / DATABASE_FOLDER)],
            app_kwargs={
                "exception_handlers": error_handlers() | dict.fromkeys(_MISFITS, _refuse_misfit),
            },
        )  # fmt: skip


def share_address(port: int) -> str:
    """Ask Gradio's relay for a public address of this port; "" if there is none. It ends with the program."""
    try:
        address = networking.setup_tunnel(
            local_host="127.0.0.1", local_port=port, share_token=secrets.token_urlsafe(32),
            share_server_address=None, share_server_tls_certificate=None,
        )  # fmt: skip
    except (RuntimeError, OSError, ValueError) as error:
        _log.warning("The page has no public address: %s", error)
        return ""
    return urlsplit(address)._replace(scheme="https").geturl()

"""The two doors to each call, a function over plain data: FastAPI's for the page, Gradio's for programs."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from inspect import getdoc, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gradio as gr
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, validate_call
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from app.jobs.job import NoSuchJob
from app.jobs.storage.trouble import TROUBLE
from app.redact import plain_paths
from app.ui.errors import PAGE_CALLS, JsonAnswer, page_error, refusal_answer
from diffusers_helper.errors import InputError, LongtakeError, first_line, short_repr

Call = Callable[..., Any]
Jobs = Annotated[list[str], Field(max_length=5000)]  # as many keep a thread for a few seconds
_CONFIG = ConfigDict(allow_inf_nan=False)
_EXPECTED = "Input should be "  # begins most of pydantic's sentences


def page_router(*groups: object) -> APIRouter:
    """Return a route for each call of some objects: a message with its arguments to `/api/jobs_pause`."""
    router = APIRouter(prefix=PAGE_CALLS.rstrip("/"), default_response_class=JsonAnswer)
    for call in _calls_of(groups):
        router.add_api_route(f"/{call.__name__}", _with_message(call), methods=["POST"], summary=getdoc(call))
    return router


def _with_message(call: Call) -> Call:
    parameters = signature(call).parameters.values()
    fields: Any = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in parameters}
    message_type = create_model(call.__name__, __config__=_CONFIG, **fields)

    def answer(message: BaseModel) -> Any:
        return call(**dict(message))

    answer.__annotations__ = {"message": message_type, "return": signature(call).return_annotation}
    return answer


def zip_answer(name: str | Path, archive: tuple[int, Iterator[bytes]]) -> StreamingResponse:
    """Send a ZIP file while it is made, and its size before."""
    size, parts = archive
    headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(parts, media_type="application/zip", headers=headers)


def error_handlers() -> dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]]:
    async def refuse(request: Request, error: Exception) -> Response:
        path = request.url.path
        if isinstance(error, HTTPException):
            return refusal_answer(path, error.status_code, f"{str(error.detail).rstrip('.')}.")
        status = 404 if isinstance(error, NoSuchJob) else 500 if isinstance(error, TROUBLE) else 400
        refusal = _refusal_of(error)
        return refusal_answer(path, status, *page_error(refusal), refusal.code, refusal.setting)

    async def fail(request: Request, error: Exception) -> Response:
        message = f"The server has made a mistake ({type(error).__name__}), which its log describes."
        return refusal_answer(request.url.path, 500, message, "Try something else, and report it.", "error")

    kinds = HTTPException, LongtakeError, RequestValidationError, *TROUBLE
    return {**dict.fromkeys(kinds, refuse), Exception: fail}


class Endpoint(NamedTuple):
    """A function that programs call through Gradio, in whose queue they can wait if it `is_queued`."""

    function: Callable[..., Awaitable[Any]]
    name: str
    description: str
    is_queued: bool = False


def gradio_endpoints(*groups: object) -> list[Endpoint]:
    return [Endpoint(_endpoint(call), call.__name__, getdoc(call) or "") for call in _calls_of(groups)]


def _calls_of(groups: Iterable[object]) -> list[Call]:
    return [
        getattr(group, name)
        for group in groups
        for name, member in vars(type(group)).items()
        if callable(member) and not name.startswith("_")
    ]


def _endpoint(call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    checked = validate_call(config={**_CONFIG, "strict": True})(call)
    names = list(signature(call).parameters)

    @wraps(call)
    async def endpoint(*values: object, **named: object) -> Any:
        with as_gradio_error(names):
            # Not one of the threads of the page's calls, so that programs do not hold these up.
            return await asyncio.to_thread(partial(checked, *values, **named))

    return endpoint


@contextmanager
def as_gradio_error(names: list[str]) -> Iterator[None]:
    """Raise an error of a call as Gradio's, with its sentences. `names` are those of the call's arguments."""
    try:
        yield
    except (LongtakeError, ValidationError, *TROUBLE) as error:
        raise gr.Error(plain_paths(str(_refusal_of(error, names))), print_exception=False) from error


def _refusal_of(error: Exception, names: list[str] | None = None) -> LongtakeError:
    """Return the error to tell: the same one, or one in place of pydantic's or the disk's."""
    if isinstance(error, LongtakeError):
        return error
    if isinstance(error, ValidationError | RequestValidationError):
        return _invalid(error, names or [])
    reason = getattr(error, "strerror", None) or first_line(error)
    remedy = "Check the free space and the rights of its folders, and call again."
    return LongtakeError(f"A folder of the server cannot be used now ({reason}).", remedy, code="storage")


def _invalid(error: ValidationError | RequestValidationError, names: list[str]) -> InputError:
    first = error.errors()[0]
    path = list(first["loc"])
    if path[:1] in (["body"], ["query"], ["path"]):
        path = path[1:] or ["the message"]
    if names and isinstance(path[0], int):  # the number of an argument
        path[0] = names[path[0]] if path[0] < len(names) else f"argument {path[0] + 1}"
    name = ".".join(map(str, path))
    problem = first["msg"]
    if "missing" in first["type"]:
        return InputError(f"{name} is missing.", f"Pass {name}.")
    if not problem.startswith(_EXPECTED):
        return InputError(f"{name} cannot be used ({problem}).", f"Correct {name}.")
    expected = problem.removeprefix(_EXPECTED)
    return InputError(f"{name} is {short_repr(first['input'])}; expected {expected}.", f"Correct {name}.")

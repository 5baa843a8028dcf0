"""The conversion of functions over plain JSON into named endpoints, for scripts and programs alike."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, wraps
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any, cast

import gradio as gr
from pydantic import TypeAdapter, ValidationError

from app.jobs.storage.trouble import TROUBLE
from app.redact import plain_paths
from diffusers_helper.errors import InputError, LongtakeError, first_line, short_repr

MOST_WAITING = 200
_MOST_VALUES = 5000  # as many jobs keep a thread for a few seconds
_THREADS = 2  # calls that run at once; other work needs threads meanwhile


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A function that programs and scripts call by its name.

    Attributes:
        is_queued: Whether its calls wait in gradio's queue, so that a caller may listen for the result.
    """

    name: str
    function: Callable[..., Any]
    description: str
    is_queued: bool = False

    @property
    def parameters(self) -> list[Parameter]:
        return [*inspect.signature(self.function).parameters.values()]


def served(*groups: object) -> list[Endpoint]:
    """Return an endpoint for each public method of some objects, which share a room in which calls wait.

    An endpoint has the name, the parameters and the docstring of its method, which returns plain JSON and
    runs in a thread unless it is a coroutine. If it raises a LongtakeError, the caller gets its text.
    """
    room = CallLimiter(MOST_WAITING)
    return [
        Endpoint(name, _served(getattr(group, name), room), inspect.getdoc(one) or "")
        for group in groups
        for name, one in vars(type(group)).items()
        if isinstance(one, FunctionType) and not name.startswith("_")
    ]


def refusal(error: LongtakeError) -> gr.Error:
    """Return the error that a program gets from an endpoint, without paths."""
    return gr.Error(plain_paths(str(error)), print_exception=False)


class CallLimiter:
    """A bounded waiting room of calls, which run in a few threads."""

    def __init__(self, most: int) -> None:
        self.threads, self._waiting, self._most = asyncio.Semaphore(_THREADS), 0, most

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        if self._waiting >= self._most:
            raise gr.Error(
                f"{self._most} other calls are already waiting. Call again later.", print_exception=False
            )
        self._waiting += 1
        try:
            yield
        except LongtakeError as error:
            raise refusal(error) from error
        except TROUBLE as error:
            reason = getattr(error, "strerror", None) or first_line(error)
            reported = f"A folder of the server cannot be used now ({reason})."
            remedy = "Check the free space and the rights of its folders, and call again."
            raise refusal(LongtakeError(reported, remedy)) from error
        finally:
            self._waiting -= 1


def _served(function: Callable[..., Any], room: CallLimiter) -> Callable[..., Any]:
    signature = inspect.signature(function, eval_str=True)

    @wraps(function)
    async def call(*values: object, **named: object) -> Any:
        async with room.place():
            given = signature.bind(*values, **named).arguments
            for name, value in given.items():
                _check(name, value, signature.parameters[name].annotation)
            if inspect.iscoroutinefunction(function):
                return await function(**given)
            async with room.threads:
                return await asyncio.to_thread(function, **given)

    return signed(call, signature)


def signed(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """Return a function that takes any arguments, with the signature that programs see."""
    # Gradio reads names, defaults and the result's type from the signature, and other types from annotations.
    function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    function.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    return function


def _check(name: str, value: object, hint: Any) -> None:
    if isinstance(value, list) and len(cast(list[object], value)) > _MOST_VALUES:
        raise InputError(f"{name} has more than {_MOST_VALUES} values.", "Call once for each part of them.")
    try:
        _adapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise InputError(
            f"{name} is {short_repr(value)}; expected {expected}.", f"Correct {name}."
        ) from error


_adapter = cache(TypeAdapter[Any])

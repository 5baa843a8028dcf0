"""The check of messages to gradio, which would answer many that it cannot use as if the server had failed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.machine.terminal import is_whole

if TYPE_CHECKING:
    from app.ui.calls.serve import Endpoint

_NAMED = re.compile(r"/gradio_api/(?P<way>run|api|call)/(?P<names>v2/)?(?P<name>[^/]+)")
_JOIN = "/gradio_api/queue/join"
_INFO = "Look at /gradio_api/info."
_MOST_NAME = 200  # characters of the name that a page or a program gives its session


class Calls:
    """The calls that the endpoints can take, in whose order gradio numbers them."""

    def __init__(self, endpoints: Sequence[Endpoint] = ()) -> None:
        self._endpoints, self._named = endpoints, {one.name: one for one in endpoints}

    def check(self, path: str, body: bytes) -> None:
        """Check a message before gradio reads it. What the arguments mean is left to the functions.

        Raises:
            InputError: If it is no JSON, holds text or numbers that nothing here can use, names a function
                that does not exist, or has too few or too many arguments.
        """
        try:
            message: Any = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InputError("The message is not JSON, or nested too deep.", _INFO) from error
        for value in _values(message):
            if isinstance(value, str) and not is_whole(value):
                raise InputError(
                    f"A text is {short_repr(value)}; expected Unicode without NUL and half characters.",
                    "Type it again.",
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"A number is {value}; expected a finite one.", "Correct it.")
        if not isinstance(message, dict):
            raise InputError(f"The message is {short_repr(message)}; expected a JSON object.", _INFO)
        found = _NAMED.fullmatch(path)
        if found and found["names"]:
            _check_names(self._by_name(found["name"]), message)
        elif path == _JOIN or (found and found["way"] != "call" and message.get("fn_index") is not None):
            _check_count(self._by_number(message), message)
        elif found:
            _check_count(self._by_name(found["name"]), message)

    def _by_name(self, name: str) -> Endpoint:
        if name not in self._named:
            known = ", ".join(self._named)
            raise InputError(f"There is no endpoint {short_repr(name)}; expected one of {known}.", _INFO)
        return self._named[name]

    def _by_number(self, message: dict[str, Any]) -> Endpoint:
        """Return the function that a program names by its number."""
        number, session = message.get("fn_index"), message.get("session_hash")
        known = range(len(self._endpoints))
        if isinstance(number, bool) or not isinstance(number, int) or number not in known:
            raise InputError(f"fn_index is {short_repr(number)}; expected the number of a function.", _INFO)
        if session is not None and not (isinstance(session, str) and len(session) <= _MOST_NAME):
            found = f"session_hash is {short_repr(session)}"
            raise InputError(f"{found}; expected at most {_MOST_NAME} characters.", "Choose a shorter one.")
        return self._endpoints[number]


def _check_count(endpoint: Endpoint, message: dict[str, Any]) -> None:
    values, count = message.get("data"), len(endpoint.parameters)
    if not isinstance(values, list):
        raise InputError(f"data is {short_repr(values)}; expected a list of arguments.", _INFO)
    if len(values) != count:
        raise InputError(f"data has {len(values)} values; {endpoint.name} takes {count}.", _INFO)


def _check_names(endpoint: Endpoint, message: dict[str, Any]) -> None:
    names = [one.name for one in endpoint.parameters]
    if unknown := [name for name in message if name not in names]:
        expected = ", ".join(names) or "none"
        raise InputError(f"{short_repr(unknown[0])} is no argument; expected {expected}.", "Leave it out.")
    missing = [
        one.name for one in endpoint.parameters if one.default is one.empty and one.name not in message
    ]
    if missing:
        raise InputError(f"{missing[0]} is missing; expected all of {', '.join(names)}.", "Give it.")


def _values(message: Any) -> Iterator[Any]:
    """Yield everything in a message, including the names in its objects."""
    left = [message]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
        else:
            yield value

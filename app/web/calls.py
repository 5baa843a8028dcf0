"""The check of messages to gradio, which would answer many that it cannot use as if the server had failed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from inspect import Signature
from typing import TYPE_CHECKING, Any

from diffusers_helper.errors import InputError, short_repr

if TYPE_CHECKING:
    from app.ui.calls.serve import Endpoint

_NAMED = re.compile(r"/gradio_api/(?P<way>run|api|call)/(?P<names>v2/)?(?P<name>[^/]+)")
_JOIN = "/gradio_api/queue/join"
_INFO = "Look at /gradio_api/info."
_NUL = re.compile(rb"(?<!\\)(\\\\)*\\u0000")


class Calls:
    """The calls that the endpoints can take, in whose order gradio numbers them."""

    def __init__(self, endpoints: Sequence[Endpoint] = ()) -> None:
        self._endpoints, self._named = endpoints, {one.name: one for one in endpoints}

    def read(self, path: str, body: bytes, inward: Callable[[Any], Any]) -> Any:
        """Return a message that gradio can use. What the arguments mean is left to the functions.

        Args:
            inward: What translates its values, as `FolderNames.inward` does.

        Raises:
            InputError: If it is no JSON, holds text or numbers that nothing here can use, names a function
                that does not exist, or has too few or too many arguments.
        """
        try:
            message: Any = inward(json.loads(body))
            # Half a pair of surrogates cannot be encoded, and no file or process takes NUL.
            if _NUL.search(json.dumps(message, ensure_ascii=False, allow_nan=False).encode()):
                raise ValueError("NUL")
        except (ValueError, RecursionError) as error:
            raise InputError(
                "The message is not JSON with whole characters and finite numbers, or nested too deep.",
                "Type its texts anew, or look at /gradio_api/info.",
            ) from error
        if not isinstance(message, dict):
            raise InputError(f"The message is {short_repr(message)}; expected a JSON object.", _INFO)
        found = _NAMED.fullmatch(path)
        if found and found["names"]:
            _check_names(self._by_name(found["name"]), message)
        elif path == _JOIN or (found and found["way"] != "call" and message.get("fn_index") is not None):
            _check_count(self._by_number(message), message)
        elif found:
            _check_count(self._by_name(found["name"]), message)
        return message

    def _by_name(self, name: str) -> Endpoint:
        if name not in self._named:
            known = ", ".join(self._named)
            raise InputError(f"There is no endpoint {short_repr(name)}; expected one of {known}.", _INFO)
        return self._named[name]

    def _by_number(self, message: dict[str, Any]) -> Endpoint:
        """Return the function that a program names by its number."""
        number = message.get("fn_index")
        if type(number) is not int or number not in range(len(self._endpoints)):
            raise InputError(f"fn_index is {short_repr(number)}; expected the number of a function.", _INFO)
        return self._endpoints[number]


def _check_count(endpoint: Endpoint, message: dict[str, Any]) -> None:
    values, count = message.get("data"), len(endpoint.parameters)
    if not isinstance(values, list):
        raise InputError(f"data is {short_repr(values)}; expected a list of arguments.", _INFO)
    if len(values) != count:
        raise InputError(f"data has {len(values)} values; {endpoint.name} takes {count}.", _INFO)


def _check_names(endpoint: Endpoint, message: dict[str, Any]) -> None:
    try:
        Signature(endpoint.parameters).bind(**message)
    except TypeError as error:
        names, why = ", ".join(one.name for one in endpoint.parameters) or "none", str(error)[:200]
        raise InputError(f"{endpoint.name} cannot be called ({why}); expected {names}.", _INFO) from error

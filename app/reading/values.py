"""The form in JSON of what the readers of files return."""

from collections.abc import Callable
from typing import Any, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter

_BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")


def result_of(reader: Callable[..., Any]) -> TypeAdapter[tuple[Any]]:
    return TypeAdapter(cast(Any, tuple)[get_type_hints(reader)["return"]], config=_BYTES)

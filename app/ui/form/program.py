"""The example of a program that makes the form's video through the page's endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from diffusers_helper.request import SETTINGS

_EXAMPLE = """\
from gradio_client import Client, handle_file

client = Client("PAGE")
video = client.predict(
{arguments}
    api_name="/generate",
)
print(video)  # the path of the finished MP4
"""


def example_program(request: Mapping[str, Any], preselected: str, picture: str) -> str:
    """Return the program, with a call that names the picture, the prompt and all settings that were changed.

    PAGE stands for the page's address, which only the browser knows.

    Args:
        request: The settings of the form, as in a request.
        preselected: The model that a call gets if it names none.
        picture: The name of the picture's file.
    """
    usual = {name: setting.default for name, setting in SETTINGS.items()}
    usual |= {"model": preselected, "mode": None}
    given = {"image": None, "prompt": request.get("prompt") or ""} | {
        name: request[name] for name in SETTINGS if name in request and request[name] != usual[name]
    }
    written = {name: _written(value) for name, value in given.items()}
    written["image"] = f"handle_file({_written(picture)})"
    arguments = "\n".join(f"    {name}={value}," for name, value in written.items())
    return _EXAMPLE.format(arguments=arguments)


def _written(value: object) -> str:
    """Return a value as Python code, with text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)

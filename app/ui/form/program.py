"""The example of a program that makes the form's video through the page's endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from diffusers_helper.request import PICTURES, SETTINGS

_EXAMPLE = """\
from gradio_client import Client, handle_file

client = Client("PAGE")
video = client.predict(
{arguments}
    api_name="/generate",
)
print(video)  # the path of the finished MP4
"""


def example_program(request: Mapping[str, Any], preselected: str) -> str:
    """Return the program, with a call that names the pictures, the prompt and all settings that were changed.

    PAGE stands for the page's address, which only the browser knows.

    Args:
        request: The settings of the form, as in a request.
        preselected: The model that a call gets if it names none.
    """
    usual = {name: setting.default for name, setting in SETTINGS.items()}
    usual |= {"model": preselected, "mode": None}
    uploads = {name: request[name] for name in PICTURES if request.get(name)}
    written = {name: f"handle_file({_written(_name_of(upload))})" for name, upload in uploads.items()}
    written["prompt"] = _written(request.get("prompt") or "")
    written |= {
        name: _written(request[name]) for name in SETTINGS
        if name in request and name not in written and request[name] != usual[name]
    }  # fmt: skip
    arguments = "\n".join(f"    {name}={value}," for name, value in written.items())
    return _EXAMPLE.format(arguments=arguments)


def _name_of(upload: object) -> str:
    """Return the name of the file that somebody uploaded, given gradio's description of the upload."""
    name = upload.get("orig_name") if isinstance(upload, dict) else None
    return str(name or "picture.png")


def _written(value: object) -> str:
    """Return a value as Python code, with text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)

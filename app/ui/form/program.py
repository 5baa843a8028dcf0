"""The example of a program that makes the video of the form by the page's endpoint."""

from __future__ import annotations

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

    The page's address stands in it as PAGE, since only the browser knows it.

    Args:
        request: The settings of the form, as a request has them.
        preselected: The model of a call that names none.
        picture: The name of the picture's file.
    """
    usual = {name: setting.default for name, setting in SETTINGS.items()}
    usual |= {"model": preselected, "mode": None}
    given = {"image": None, "prompt": request.get("prompt") or ""} | {
        name: request[name] for name in SETTINGS if name in request and request[name] != usual[name]
    }
    lines = [
        f"    image=handle_file({picture!r})," if name == "image" else f"    {name}={value!r},"
        for name, value in given.items()
    ]
    return _EXAMPLE.format(arguments="\n".join(lines))

"""Which picture a request from outside may name: one that was uploaded. Never a path of choice."""

from __future__ import annotations

from pathlib import Path

from gradio.utils import get_upload_folder

from diffusers_helper.errors import InputError


def picture_path(picture: object) -> str:
    """Where the picture of an upload lies, from gradio's description of it; empty for none.

    Gradio checks descriptions that call themselves its own, and passes others on as they came.

    Raises:
        InputError: for anything else than an upload, whether there is such a file or not.
    """
    if picture is None:
        return ""
    path = picture.get("path") if isinstance(picture, dict) else None
    if isinstance(path, str) and "\0" not in path and _is_uploaded(Path(path)):
        return path
    raise InputError(
        "image is not an upload; expected a picture sent along.", "Pass gradio_client.handle_file(path)."
    )


def _is_uploaded(path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(Path(get_upload_folder()).resolve())
    except OSError:  # a name too long, a ring of links
        return False

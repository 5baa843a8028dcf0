"""Errors as the page shows them, in the terms of its labels and of the memory plan, and as answers."""

from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.redact import plain_paths
from diffusers_helper.errors import FailureCode, LongtakeError, default_name, in_words
from diffusers_helper.events import STAGES
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.request import SETTINGS
from diffusers_helper.units import gb_text

PAGE_CALLS, PROGRAM_CALLS = "/api/", "/gradio_api/"
"""What the addresses of calls begin with."""
UPLOAD = f"{PROGRAM_CALLS}upload"


class JsonAnswer(JSONResponse):
    def __init__(self, content: Any, status_code: int = 200, **options: Any) -> None:
        super().__init__(content, status_code, headers={"cache-control": "no-store"}, **options)


def refusal_answer(
    path: str, status: int, message: str, remedy: str = "", code: FailureCode = "bad_input", setting: str = ""
) -> Response:
    """Return an error in the shape of its path's answers: for the page's scripts, programs or readers."""
    if path.startswith(PAGE_CALLS):
        return JsonAnswer({"code": code, "message": message, "remedy": remedy, "setting": setting}, status)
    sentences = f"{message} {remedy}".strip()
    if path.startswith(PROGRAM_CALLS) and path != UPLOAD:
        return JsonAnswer({"error": sentences, "detail": sentences}, status)  # Gradio's clients read either
    return PlainTextResponse(f"{sentences}\n", status)


def page_words(text: str, outputs: Path | None = None) -> str:
    """Name settings by their labels, and shorten paths, of which `outputs` may be one."""
    return plain_paths(in_words(text, _label), outputs)


def page_error(error: LongtakeError) -> tuple[str, str]:
    message, remedy = error.message, error.remedy
    if isinstance(error, DoesNotFit):
        message = (
            f"Does not fit: “{STAGES[error.stage].network}” needs more memory than the cap of "
            f"{gb_text(error.budget.cap_bytes)} GB leaves."
        )
        remedy += " Choose another model." if error.is_too_large and not error.side else ""
    return page_words(message), page_words(remedy)


def _label(name: str) -> str:
    return SETTINGS[name].short_label if name in SETTINGS else default_name(name)

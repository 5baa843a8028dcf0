"""The endpoints of the buttons below the form, which answer with a notice as markup."""

from __future__ import annotations

import re
import threading
from typing import Any

from app.ui.form.actions import Actions
from diffusers_helper.errors import InputError, short_repr

_ID = re.compile("[0-9a-f]{16,64}")


class PressCalls:
    """The endpoints for one page's actions."""

    def __init__(self, actions: Actions) -> None:
        self._actions, self._turn = actions, threading.Lock()

    @property
    def all(self) -> list[Any]:
        """Return all endpoints."""
        return [getattr(self, name) for name in vars(PressCalls) if name.startswith("form_")]

    def form_start(self, press: str, settings: dict[str, Any], may_download: bool) -> str:
        """Queue the video that the form describes, once for each press, however often it is sent.

        Args:
            press: An id of at least 16 hexadecimal digits that the caller has drawn.
            settings: The form's values by name.
            may_download: Whether the model may be downloaded if it is not here.
        """
        if not _ID.fullmatch(press):
            raise InputError(
                f"press is {short_repr(press)}; expected 16 to 64 of 0-9 and a-f.", "Draw an id."
            )
        with self._turn:  # the same press may come again while it is being taken
            return self._actions.start(settings, may_download=may_download, press=press)

    def form_save(self, job: str, settings: dict[str, Any]) -> str:
        """Give a job that has not begun the form's values."""
        return self._actions.save(job, settings)

    def form_end(self) -> str:
        """End the job that is being made, or else the next one."""
        return self._actions.end()

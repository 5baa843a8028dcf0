"""The endpoints of the page's form: its description, what fills it, and the buttons below it."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

from app.ui.form.actions import Actions
from app.ui.form.describe import Describer
from diffusers_helper.errors import InputError, short_repr

_ID = re.compile("[0-9a-f]{16,64}")


class PageFormCalls:
    """The endpoints for one page. What they return, the script of the form shows as it is."""

    def __init__(self, actions: Actions, describer: Describer) -> None:
        self._actions, self._describer, self._turn = actions, describer, threading.Lock()

    @property
    def all(self) -> list[Any]:
        """Return all endpoints."""
        return [getattr(self, name) for name in vars(PageFormCalls) if name.startswith("form_")]

    async def form_describe(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return what the form says about its values: `markup` by the id of an element, and `facts`."""
        await self._describer.pictures.prepare_uploads(settings)
        return await asyncio.to_thread(self._describer.describe, settings)

    def form_restore(self, kept: str) -> dict[str, Any]:
        """Return `values` and `markup` for the form's values that a browser kept, as JSON."""
        return self._actions.restore(kept)

    def form_fill(self, restored: str, kept: str) -> dict[str, Any]:
        """Return `values`, `markup` and a `notice` for settings from outside the form."""
        return self._actions.fill(restored, kept)

    def form_reset(self, model: str) -> dict[str, Any]:
        """Return the defaults of all settings except picture, prompt and model."""
        return self._actions.reset(model)

    def form_model(self, model: str, mode: str) -> dict[str, Any]:
        """Return what changes with the model."""
        return self._actions.choose_model(model, mode)

    def form_models(self, model: str, mode: str) -> dict[str, Any]:
        """Return the models to choose from now, and the values of another one if this model is gone."""
        return self._actions.offer_models(model, mode)

    def form_example(self, model: str, index: int, starts: bool) -> dict[str, Any]:
        """Return the values of an example, and start its video if `starts` is true."""
        return (self._actions.run_example if starts else self._actions.use_example)(model, index)

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

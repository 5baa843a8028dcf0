"""The token that asks a running job to end. Each job has its own, so a cancel cannot reach another job."""

from __future__ import annotations

import threading

from diffusers_helper.errors import GenerationCancelled


class CancelToken:
    """A flag that any thread may set, and that a job checks between steps, tiles and layers."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise GenerationCancelled once the token is set."""
        if self._event.is_set():
            raise GenerationCancelled

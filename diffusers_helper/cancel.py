"""A way to ask a running job to end. Each job gets a token of its own, so no cancel can reach another job."""

from __future__ import annotations

import threading

from diffusers_helper.errors import GenerationCancelled


class CancelToken:
    """Set from any thread, looked at between steps, tiles and layers."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raises GenerationCancelled once the token is set."""
        if self._event.is_set():
            raise GenerationCancelled

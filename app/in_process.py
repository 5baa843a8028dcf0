"""The engine without a process: the same runner in a thread, for use with a debugger."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.jobs.job import Job
from app.jobs.making.engine_client import Message, Trial, follow
from app.machine import this_local
from app.miopen import conv_settings
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Event
from diffusers_helper.failures import failed_event

if TYPE_CHECKING:
    from diffusers_helper.runner import Runner


class InProcessEngine:
    """An `Engine` in this process. Its thread can be cancelled but not killed: `kill` only ends `run`."""

    restarts = False

    def __init__(self) -> None:
        self._token = CancelToken()  # of the job that is running
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._runner: Runner | None = None

    def start(self) -> None:
        """Do nothing, because the libraries are loaded with the first job."""

    def run(
        self, job: Job, *, blocklist: Mapping[Trial, str] = MappingProxyType({})
    ) -> Iterator[Event | None]:
        events = self._events = queue.SimpleQueue()
        token = self._token = CancelToken()
        arguments = (job, token, events)
        threading.Thread(target=self._make, args=arguments, name="engine", daemon=True).start()
        yield from follow(job.id, events)

    def cancel(self, job_id: str) -> None:
        self._token.cancel()

    def kill(self) -> None:
        self._events.put(None)

    def close(self) -> None:
        """Do nothing, because the loaded model is freed with this object."""

    def _make(self, job: Job, token: CancelToken, events: queue.SimpleQueue[Message]) -> None:
        try:
            # Importing torch takes seconds, and only this engine needs it here.
            from diffusers_helper.job.card import CardLost
            from diffusers_helper.miopen_fallback import initialize_miopen_fallback
            from diffusers_helper.runner import Runner

            if self._runner is None:
                self._runner = Runner(this_local(os.environ), initialize_miopen_fallback(**conv_settings()))
        except Exception as error:  # noqa: BLE001 - the thread ends, and the job reports why
            events.put(failed_event(error, job.id, 0.0, None, 0))
            return
        try:
            self._runner.run(job.request, job.folder, events.put, token)
        except CardLost:
            events.put(None)

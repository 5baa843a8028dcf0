"""An engine whose process outlives its service, so that many tests share one."""

import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

from app.jobs.job import Job
from app.jobs.making.engine_client import EngineProcess, Trial
from diffusers_helper.events import Event


class WarmEngine(EngineProcess):
    """An engine that ends with `end`, and otherwise only if a service is closed while a job is under way.

    The kernel ends the process with the thread that started it, so a thread of its own starts it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._starter = ThreadPoolExecutor(1)
        self._is_busy = False

    def _start(self) -> subprocess.Popen[bytes]:
        return self._starter.submit(super()._start).result()

    def run(
        self, job: Job, *, blocklist: Mapping[Trial, str] = MappingProxyType({})
    ) -> Iterator[Event | None]:
        self._is_busy = True
        for event in super().run(job, blocklist=blocklist):
            self._is_busy = event is None or not event.is_final
            yield event

    def kill(self) -> None:
        if self._is_busy:  # a service that ends while no job is under way leaves the process to the next one
            super().kill()

    def close(self) -> None:
        if self._is_busy:
            super().close()
            self._is_busy = False

    def end(self) -> None:
        super().close()
        self._starter.shutdown()

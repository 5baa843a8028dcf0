"""Makes one video after the other and keeps the model loaded between them."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, InputError, LongtakeError
from diffusers_helper.events import Cancelled, Event, SectionFinished
from diffusers_helper.failures import failed_event
from diffusers_helper.machine.local import Local
from diffusers_helper.miopen_fallback import MIOpenFallbackHandler, initialize_miopen_fallback
from diffusers_helper.models.loaders import Models, load_models
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.pipeline import generate
from diffusers_helper.request import GenerationRequest

_log = logging.getLogger(__name__)


class Runner:
    """The models of the last job, ready for the next one of the same model."""

    def __init__(self, local: Local | None = None, convolutions: MIOpenFallbackHandler | None = None) -> None:
        """`local`: settings of this machine."""
        self._local = local or Local()
        self._convolutions = initialize_miopen_fallback() if convolutions is None else convolutions
        self._info: ModelInfo | None = None
        self._models: Models | None = None

    def run(
        self,
        request: GenerationRequest,
        folder: Path,
        on_event: Callable[[Event], None],
        cancel: CancelToken,
        *,
        resume: bool = False,
    ) -> None:
        """Makes the video in `folder`. Whatever happens ends in one final event; nothing is raised.

        With `resume` it goes on with what an earlier run has left there.

        The request comes from `submit`, which has decided whether its model may be a folder.
        """
        said = _Said(on_event)
        started = time.monotonic()
        try:
            models = self._load(find_model(request.model, allow_folder=True), cancel)
            source = folder if resume else None
            generate(
                request, models, on_event=said, cancel=cancel,
                folder=folder, resume_from=source, local=self._local,
            )  # fmt: skip
        except GenerationCancelled:
            if not said.the_end:
                elapsed = time.monotonic() - started
                said(Cancelled(job=folder.name, time=elapsed, video=said.video, frames=said.frames))
        except Exception as error:  # noqa: BLE001 - the end of the road for any error: it becomes the Failed event
            _log.error("job %s failed", folder.name, exc_info=not isinstance(error, LongtakeError))
            if not isinstance(error, InputError):
                self._drop()  # what an error left in memory or on the device must not reach the next job
            elapsed = time.monotonic() - started
            said(failed_event(error, folder.name, elapsed, said.video, said.frames))
        self._convolutions.print_stats()

    def _load(self, info: ModelInfo, cancel: CancelToken) -> Models:
        if self._models is None or info != self._info:
            self._drop()
            self._models = load_models(info, cancel=cancel, convolutions=self._convolutions)
            self._info = info
        return self._models

    def _drop(self) -> None:
        self._models = self._info = None
        gc.collect()


class _Said:
    """Passes events on and remembers what a last word has to repeat."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self.the_end = False
        self.video: str | None = None
        self.frames = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, SectionFinished):
            self.video, self.frames = event.video, event.frames
        self.the_end = event.is_final
        self._on_event(event)

"""The runner, which makes one job after another, keeps the model loaded meanwhile, and writes their logs."""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path

import torch

from diffusers_helper import events
from diffusers_helper.cancel import CancelToken
from diffusers_helper.conditions.pictures import request_content, stored_request
from diffusers_helper.errors import GenerationCancelled, InputError, LongtakeError
from diffusers_helper.failures import failed_event
from diffusers_helper.files import open_at_once, read_file, write_atomic
from diffusers_helper.finish.upscale_models import upscale_folder
from diffusers_helper.job.card import card_alone, check_card
from diffusers_helper.job.finish import finish
from diffusers_helper.job.upscale_model import load_upscale_model
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.machine.control_groups import processors
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.terminal import LogLines
from diffusers_helper.memory.device import open_device, second_device
from diffusers_helper.miopen_fallback import DEVIATION, MIOpenFallbackHandler, initialize_miopen_fallback
from diffusers_helper.models.registry import find_model
from diffusers_helper.pipeline import generate
from diffusers_helper.planning.profiles import HELPER_VARIABLE
from diffusers_helper.provenance.job_folder import JobFolder

_log = logging.getLogger(__name__)
_EXPECTED_CODES = ("storage", "disk_full", "download")


class _Reporter:
    """It remembers what a final event repeats, and warns of convolutions on other rungs since it was made."""

    def __init__(self, on_event: Callable[[events.Event], None], convolutions: MIOpenFallbackHandler) -> None:
        self._on_event, self._convolutions = on_event, convolutions
        self._changed_before = convolutions.changed
        self.has_ended = False
        self.video: str | None = None
        self.frames = 0

    def __call__(self, event: events.Event) -> None:
        # Steps and pieces are too many for the log, and a failure is logged with its cause.
        if not isinstance(event, events.StepDone | events.PieceDone | events.Failed):
            _log.info("%s", _log_line(event))
        if isinstance(event, events.SectionFinished):
            self.video, self.frames = event.video, event.frames
        if isinstance(event, events.Finished) and self._convolutions.changed > self._changed_before:
            message = f"Some convolutions failed and were computed in other ways. {DEVIATION}"
            self._on_event(events.Warned(job=event.job, time=event.time, message=message))
        self.has_ended = event.is_final
        self._on_event(event)


def _log_line(event: events.Event) -> str:
    fields = {name: value for name, value in events.to_dict(event).items() if value not in (None, 0, "")}
    kind = fields.pop("event")
    text = ", ".join(f"{name} {value}" for name, value in fields.items() if name not in ("job", "time"))
    return f"{kind}: {text}"


class Runner:
    def __init__(self, local: Local | None = None, convolutions: MIOpenFallbackHandler | None = None) -> None:
        self._local = local or Local()
        self._convolutions = initialize_miopen_fallback() if convolutions is None else convolutions
        self._models: Models | None = None
        # Torch starts a thread for each core; more than a control group lets run only wait for each other.
        torch.set_num_threads(min(torch.get_num_threads(), processors()))

    def run(self, folder: Path, on_event: Callable[[events.Event], None], cancel: CancelToken) -> None:
        """Make the video whose request is in `folder`, with a final event for every outcome but CardLost."""
        with job_log(JobFolder(folder).log):
            self._convolutions.log_start()
            self._run(folder, _Reporter(on_event, self._convolutions), cancel)
            self._convolutions.print_stats()
        # A job's objects refer to each other and hold tensors. Python itself collects mostly young objects.
        gc.collect()

    def _run(self, folder: Path, reporter: _Reporter, cancel: CancelToken) -> None:
        start_time = time.monotonic()
        try:
            files = JobFolder(folder)
            request = stored_request(request_content(files), files)
            if request.finishing:
                self._drop()  # which frees the card for the steps that use it
                device = open_device().torch_device
                folders = [upscale_folder(self._local.environ)]
                load = partial(load_upscale_model, folders, self._convolutions, device)
                with card_alone(device, self._local.folder):
                    finish(request, folder, on_event=reporter, cancel=cancel, load=load)
                return
            info = find_model(request.model, allow_folder=True)
            if self._models is None or info != self._models.info:
                self._drop()
                self._models = load_models(info, cancel=cancel, convolutions=self._convolutions)
            models = self._models
            devices = [models.device]
            if self._local.environ.get(HELPER_VARIABLE) and models.device.type == "cuda":
                devices.append(second_device(models.device))
            with ExitStack() as stack:
                for device in devices:
                    stack.enter_context(card_alone(device, self._local.folder))
                generate(
                    request, models, on_event=reporter, cancel=cancel,
                    folder=folder, resume_from=folder, local=self._local,
                )  # fmt: skip
        except GenerationCancelled:
            if not reporter.has_ended:
                elapsed = time.monotonic() - start_time
                fields = {"video": reporter.video, "frames": reporter.frames}
                reporter(events.Cancelled(job=folder.name, time=elapsed, **fields))
        except Exception as error:  # noqa: BLE001 - every error ends here and becomes the Failed event
            if self._models is not None:
                check_card(self._models.device, error)
            elapsed = time.monotonic() - start_time
            event = failed_event(error, folder.name, elapsed, reporter.video, reporter.frames, folder=folder)
            is_expected = isinstance(error, LongtakeError) or event.code in _EXPECTED_CODES
            level = logging.INFO if isinstance(error, InputError) else logging.ERROR
            _log.log(level, "job %s: %s", folder.name, event.message, exc_info=not is_expected)
            if not isinstance(error, InputError):
                self._drop()  # the next job must not find what an error left in memory or on the device
            reporter(event)

    def _drop(self) -> None:
        self._models = None
        gc.collect()


# The loggers whose records are written; those of other libraries are not.
_PACKAGE = __name__.rpartition(".")[0]
_PACKAGES = (_PACKAGE, f"{_PACKAGE.removesuffix('diffusers_helper')}cache")  # in the pack, both have a parent
MAX_LOG_BYTES = 512 * 1024
_CUT_LINE = b"(earlier lines were removed)\n"


@contextmanager
def job_log(file: Path) -> Iterator[None]:
    with suppress(OSError):
        if (size := file.stat().st_size) > MAX_LOG_BYTES:
            _, _, lines = read_file(file, start=size - MAX_LOG_BYTES // 2).partition(b"\n")
            write_atomic(file, _CUT_LINE + lines)
    handler = _JobLog(file, errors="backslashreplace", delay=True)
    handler.setLevel(logging.INFO)
    handler.setFormatter(LogLines("%(asctime)s %(levelname)s %(message)s"))
    loggers = {name: logging.getLogger(name) for name in _PACKAGES}
    levels = {name: logger.level for name, logger in loggers.items()}
    for logger in loggers.values():
        # The console's handlers have their own level, so this does not change what they show.
        logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
        logger.addHandler(handler)
    try:
        yield
    finally:
        for name, logger in loggers.items():
            logger.removeHandler(handler)
            logger.setLevel(levels[name])
        handler.close()


class _JobLog(logging.FileHandler):
    """A log file that loses what cannot be written, since the job itself reports a full disk."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", errors=self.errors, opener=open_at_once)

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        with suppress(OSError):  # what is still buffered
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing about a record that cannot be written."""

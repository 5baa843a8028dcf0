"""A loader and a pipeline for the engine's fault tests, without models and torch, and with faults on demand.

The prompt is the script, such as `sections=3 steps=5 at=7 fault=SIGKILL`: it names the fault and the number
of steps before it. With `times=2` the fault happens on the first two occasions only. Faults are `wait` (until
cancelled), `obeyed` (as if a command had ended it), `hang` (reacts to nothing), `pause` (until the job's
folder holds a file `go`, or is gone), `full` (the disk is full), `gil` (reacts to nothing and blocks all
threads), `noise` (prints), `native` (a thread stays in a native library after the end), `exit`, `memory`,
`error`, `input`, and names of signals. Without a fault the job finishes. Each run of a job first warns with
its process id and the number of loaded models.
"""

import ctypes
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, InputError
from diffusers_helper.events import (
    Cancelled,
    Event,
    Finished,
    JobStarted,
    SectionFinished,
    StageStarted,
    StepDone,
    Warned,
)
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.request import GenerationRequest

_FRAMES = 36


@dataclass(frozen=True)
class Models:
    info: ModelInfo
    number: int
    device: str = "cpu"


class CardLost(Exception): ...


def card_alone(device: str, folder: Path | None) -> nullcontext[None]:
    return nullcontext()


def second_device(first: str) -> str:
    return first


def open_device() -> None:
    raise NotImplementedError  # only a finishing asks for the device


def finish(*_: object, **__: object) -> None:
    raise NotImplementedError


def check_card(device: str, error: Exception) -> None:
    """Find nothing, because there is no card."""


DEVIATION = ""


class MIOpenFallbackHandler:
    changed = 0

    def log_start(self) -> None:
        """Log nothing."""

    def print_stats(self) -> None:
        """Print nothing, because there are no convolutions."""


def initialize_miopen_fallback(**_: object) -> MIOpenFallbackHandler:
    return MIOpenFallbackHandler()


_numbers = count(1)
_gate = os.environ.get("STAND_IN_IMPORT_GATE")
while _gate and not Path(_gate).exists():  # stands for a slow import of torch, as from a cold disk
    time.sleep(0.01)


def load_models(info: ModelInfo, **_: object) -> Models:
    return Models(info, next(_numbers))


def generate(
    request: GenerationRequest,
    models: Models,
    *,
    on_event: Callable[[Event], None],
    cancel: CancelToken,
    folder: Path,
    local: object,
    resume_from: Path | None = None,
) -> None:
    script = dict(part.split("=") for part in request.prompt.split())
    sections, steps = int(script.get("sections", 2)), int(script.get("steps", 3))
    job, frames, latest = folder.name, 0, None
    on_event(
        JobStarted(job=job, time=0, sections=sections, frames=sections * _FRAMES + 1, width=64, height=64)
    )
    on_event(Warned(job=job, time=0, message=f"pid={os.getpid()} loaded={models.number}"))
    made = len(list(folder.glob("segments/so_far_*.mp4"))) if resume_from else 0
    try:
        is_due = _is_due(folder, script, made * steps)
        for done in range(made * steps, sections * steps):
            section, step = done // steps + 1, done % steps + 1
            if step == 1:
                on_event(StageStarted(job=job, time=0, stage="sample", section=section))
            if is_due:
                _trouble(script.get("fault", ""), cancel, folder)
            cancel.check()
            is_due = _is_due(folder, script, done + 1)  # counted before a test can see this step and end it
            on_event(StepDone(job=job, time=0, section=section, step=step, steps=steps))
            if step == steps:
                frames = section * _FRAMES + 1
                latest = folder / "segments" / f"so_far_{section}.mp4"
                latest.parent.mkdir(exist_ok=True)
                latest.write_bytes(b"video of %d frames" % frames)
                on_event(
                    SectionFinished(
                        job=job, time=0, section=section, sections=sections, video=str(latest), frames=frames
                    )
                )
    except GenerationCancelled:
        on_event(Cancelled(job=job, time=0, video=latest and str(latest), frames=frames))
        raise
    video = folder / "video.mp4"
    video.write_bytes(b"video of %d frames" % frames)
    on_event(Finished(job=job, time=0, video=str(video), frames=frames, seconds=0.1))


def _is_due(folder: Path, script: dict[str, str], done: int) -> bool:
    if done != int(script.get("at", 0)):
        return False
    count = folder / "troubles"
    before = len(count.read_bytes()) if count.exists() else 0
    count.write_bytes(b"x" * (before + 1))
    return before < int(script.get("times", 1000))


def _trouble(fault: str, cancel: CancelToken, folder: Path) -> None:
    if fault == "wait":
        while not cancel.is_cancelled:
            time.sleep(0.01)
    elif fault == "pause":
        while not (cancel.is_cancelled or (folder / "go").exists() or not folder.exists()):
            time.sleep(0.01)
    elif fault == "obeyed":
        raise GenerationCancelled
    elif fault == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    elif fault == "hang":
        threading.Event().wait()
    elif fault == "gil":
        ctypes.PyDLL(None).sleep(600)
    elif fault == "noise":
        sys.stdout.write('{"event": "finished"} from a library\n')
        sys.stdout.flush()
        os.write(1, b"and from C\n")
    elif fault == "native":
        _compute_for_ever()
    elif fault == "exit":
        os._exit(3)
    elif fault == "memory":
        raise MemoryError("of the stand-in")
    elif fault == "error":
        raise ZeroDivisionError("by the stand-in")
    elif fault == "input":
        raise InputError("picture is odd; expected an even one.", "Choose another.")
    elif fault:
        os.kill(os.getpid(), getattr(signal, fault))
        threading.Event().wait()


def _compute_for_ever() -> None:
    import torch

    computed = threading.Event()

    def work() -> None:
        convolve, picture = torch.nn.Conv2d(8, 8, 3), torch.zeros(1, 8, 64, 64)
        while True:
            convolve(picture)
            computed.set()

    threading.Thread(target=work, daemon=True).start()
    computed.wait()

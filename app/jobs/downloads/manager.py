"""The downloads of models beside the queue, which one program after the other carries on.

What a user has ordered is kept in the outputs folder, so that it outlasts every program.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from app.jobs.downloads.process import Adding, ModelProcess, Task
from diffusers_helper.errors import InputError
from diffusers_helper.files import read_file, sync_folder, write_atomic
from diffusers_helper.machine.file_locks import Lock
from diffusers_helper.models.downloads import NotHere, absence_of, missing_components
from diffusers_helper.models.installed import installed_components
from diffusers_helper.models.registry import ModelInfo, find_model, model_names
from diffusers_helper.untrusted.limited_json import plain_json

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_CACHE_SECONDS = 1.0  # a look at a model's files is good for so long

Activity = Literal["", "getting", "verifying", "converting", "paused", "failed"]


@dataclass(frozen=True, slots=True)
class DownloadOrder:
    """What a user wants of a model that is not completely here, or why it could not be downloaded."""

    state: Literal["wanted", "paused", "failed"]
    message: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """What happens to a model now. The speed and the time left are None while they are not known."""

    activity: Activity = ""
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    message: str = ""
    remedy: str = ""


class Downloads:
    """The downloads that were ordered in one outputs folder. Any thread may call any method.

    The orders outlast the program: the next one on the folder goes on from the bytes that are on the disk. Of
    several programs on a folder, one executes an order, and all of them can change it.
    """

    def __init__(self, folder: Path, on_change: Callable[[], None]) -> None:
        self._folder, self._on_change = folder, on_change
        self._lock = threading.Lock()  # of what follows
        self._running: dict[tuple[Task, str], ModelProcess] = {}  # also checks and conversions that are over
        self._waiting: dict[str, tuple[float, dict[str, str]]] = {}
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.adding = Adding()

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._work, name="downloads", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def get(self, name: str) -> None:
        absence = absence_of(_published(name))
        if absence is not None:
            if not absence.has_room:
                raise NotHere(absence)
            self._order(name, DownloadOrder("wanted"))

    def pause(self, name: str) -> None:
        if name in self._orders():
            self._order(name, DownloadOrder("paused"))

    def cancel(self, name: str) -> None:
        """Give up what was ordered for a model. What a download has brought stays on the disk."""
        self._forget(name)
        for key in list(self._running):
            if key[1] == name:
                self._end(key)
        self._changed()

    def _end(self, key: tuple[Task, str]) -> bool:
        with self._lock:
            process = self._running.pop(key, None)
        if process is not None:
            process.end()
        return process is not None

    def begin(self, task: Task, name: str, weight_dtype: str = "") -> None:
        with self._lock:
            process = self._running.get((task, name))
            if process is None or process.is_over:
                self._running[task, name] = ModelProcess(task, name, weight_dtype)
        self._changed()

    def problems(self, name: str) -> list[str] | None:
        process = self._running.get(("verify", name))
        if process is None or not process.is_over:
            return None
        if process.has_failed:
            return [f"{process.message} {process.remedy}".strip()]
        return process.problems

    def progress(self, name: str) -> DownloadProgress:
        checking = self._running.get(("verify", name))
        converting = self._running.get(("convert", name))
        if checking is not None and not checking.is_over:
            return _progress("verifying", checking)
        if converting is not None and not converting.is_over:
            return _progress("converting", converting)
        if converting is not None and converting.has_failed:
            message = f"It was not converted. {converting.message}"
            return DownloadProgress(message=message, remedy=converting.remedy)
        order = self._orders().get(name)
        getting = self._running.get(("get", name))
        if order is None:
            return DownloadProgress()
        if order.state == "wanted" and getting is not None and getting.total:
            return _progress("getting", getting)
        components = installed_components(find_model(name))
        here_bytes = sum(component.here_bytes for component in components)
        total_bytes = here_bytes + sum(component.missing_bytes for component in components)
        activity: Activity = "getting" if order.state == "wanted" else order.state
        return DownloadProgress(activity, here_bytes, total_bytes, message=order.message, remedy=order.remedy)

    def reason_to_wait(self, model: str) -> dict[str, str]:
        with self._lock:
            cached = self._waiting.get(model)
        now = time.monotonic()
        if cached is None or now - cached[0] > _CACHE_SECONDS:
            cached = now, self._reason(model)
            with self._lock:
                self._waiting[model] = cached
        return cached[1]

    def _reason(self, model: str) -> dict[str, str]:
        try:
            info = find_model(model, allow_folder=True)
        except InputError:  # the engine says what is wrong with it
            return {}
        if not missing_components(info):
            return {}
        progress = self.progress(model)
        remedy = f"Download it on the page under Models, or with longtake models get {model}."
        if progress.activity == "getting":
            percent = 100 * progress.done_bytes // max(1, progress.total_bytes)
            return {"message": f"Its model is being downloaded: {percent} %.", "remedy": ""}
        if progress.activity == "paused":
            return {"message": "The download of its model is paused.", "remedy": remedy}
        if progress.activity == "failed":
            return {"message": f"Its model was not downloaded. {progress.message}", "remedy": progress.remedy}
        return {"message": "Its model is not on this machine.", "remedy": remedy}

    @property
    def share(self) -> str:
        downloads = [self.progress(name) for name in self._wanted()]
        total_bytes = sum(download.total_bytes for download in downloads)
        done_bytes = sum(download.done_bytes for download in downloads)
        return f"{done_bytes * 100 // total_bytes} %" if total_bytes else ""

    @property
    def revision(self) -> tuple[object, ...]:
        """A value that changes with what `reason_to_wait` says, for the models that it was asked about."""
        with self._lock:
            names = list(self._waiting)
        return tuple((name, self.reason_to_wait(name).get("message", "")) for name in names)

    def _orders(self) -> dict[str, DownloadOrder]:
        orders: dict[str, DownloadOrder] = {}
        for file in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # damaged, or just taken away
                facts = plain_json(read_file(file))
                orders[file.stem] = DownloadOrder(facts["state"], facts["message"], facts["remedy"])
        return orders

    def _order(self, name: str, order: DownloadOrder) -> None:
        for folder in (self._folder.parent, self._folder):  # but not the folder that holds all jobs
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                sync_folder(folder.parent)
        write_atomic(self._folder / f"{name}.json", json.dumps(asdict(order)).encode())
        sync_folder(self._folder)
        self._changed()

    def _forget(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._folder / f"{name}.json").unlink()
            sync_folder(self._folder)

    def _changed(self) -> None:
        with self._lock:
            self._waiting.clear()
        self._wake.set()
        self._on_change()

    def _work(self) -> None:
        trouble = ""
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self._update()
            except OSError as error:
                if trouble != (trouble := str(error)):
                    _log.warning("No model can be downloaded, which is tried again. %s", trouble)
            self._wake.wait(_LOOK_SECONDS)
        for key in list(self._running):
            self._end(key)

    def _update(self) -> None:
        wanted = self._wanted()
        for key, process in list(self._running.items()):
            task, name = key
            if task == "get" and (name not in wanted or process.is_over) and self._end(key):
                if name in wanted:
                    self._finish(name, process)
                self._changed()
        for name in self._wanted():
            if ("get", name) not in self._running:
                self._begin(name)

    def _wanted(self) -> list[str]:
        names = model_names()  # a user may have removed one that was added
        orders = self._orders().items()
        return [name for name, order in orders if order.state == "wanted" and name in names]

    def _finish(self, name: str, process: ModelProcess) -> None:
        if not process.has_failed or not missing_components(find_model(name)):
            self._forget(name)
            _log.info("%s is complete on this machine.", name)
            return
        self._order(name, DownloadOrder("failed", process.message, process.remedy))
        _log.warning("%s was not downloaded. %s", name, process.message)

    def _begin(self, name: str) -> None:
        with contextlib.suppress(InputError):
            if missing_components(_published(name)):
                with contextlib.suppress(BlockingIOError):  # another program executes it
                    lock = Lock(self._folder / f"{name}.lock")
                    with self._lock:
                        self._running["get", name] = ModelProcess("get", name, lock=lock)
                return
        self._forget(name)  # another program has got it, or the model is not registered any more
        self._changed()


def _published(name: str) -> ModelInfo:
    info = find_model(name)
    if all(source.revision is None for source in info.components.values()):
        raise InputError(
            f"Model {name} lies on this machine; expected one of the hub.", "Choose another one."
        )
    return info


def _progress(activity: Activity, process: ModelProcess) -> DownloadProgress:
    speed = process.bytes_per_second or None
    seconds_left = None if speed is None else (process.total - process.done) / speed
    return DownloadProgress(activity, process.done, process.total, speed, seconds_left)

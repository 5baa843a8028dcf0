"""The facts about a model as the Models tab shows them: plain data, with sizes as text."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from app.jobs.downloads.manager import DownloadProgress
from app.jobs.pace import PaceBook, effort_of
from app.jobs.service import JobService
from app.redact import plain_paths
from app.ui.catalogue import Catalogue
from app.ui.errors import page_error, page_words
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.machine.sysfs import host_memory
from diffusers_helper.models.added import ADDED_MODELS
from diffusers_helper.models.downloads import Absence, absence_of
from diffusers_helper.models.installed import InstalledComponent, installed_components, plan_removal
from diffusers_helper.models.registry import ModelInfo, model_names
from diffusers_helper.planning import set_ups
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.notes import limit_notes
from diffusers_helper.request import AUTO, SETTINGS, WEIGHT_TYPES, GenerationRequest
from diffusers_helper.units import GB, about, compared_gb, gb_text, size_text

_CACHE_PREFIX = "models--"  # begins the name of a repository's folder in the hub's cache
_HUB = "https://huggingface.co/"
_COMPONENT_TITLES = {
    "transformer": "Transformer", "vae": "VAE", "text_encoder": "Text encoder", "tokenizer": "Its tokenizer",
    "text_encoder_2": "Second text encoder", "tokenizer_2": "Its tokenizer", "image_encoder": "Image encoder",
    "feature_extractor": "Its image processor", "scheduler": "Scheduler",
    "transformer_2": "Second transformer", "lora": "LoRAs for few steps",
}  # fmt: skip
_STATES = {
    "complete": "On this machine", "incomplete": "Incomplete", "missing": "Not on this machine",
    "getting": "Downloading", "verifying": "Checking", "converting": "Converting", "paused": "Paused",
    "failed": "Download failed",
}  # fmt: skip
_BUSY = ("getting", "verifying", "converting")
_GET_LABELS = {
    "paused": "Resume", "failed": "Try again", "missing": "Download", "incomplete": "Download the rest",
}  # fmt: skip
_TAKES_DAYS = "There is no GPU on this machine: a video of this model would take days."


class ModelPresenter:
    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self._paces = PaceBook(service)

    def describe_all(self) -> dict[str, Any]:
        infos = self._catalogue.infos
        models = list[dict[str, Any]]()
        for name, info in infos.items():
            with suppress(InputError):  # it has just been removed
                models.append(self._describe(name, info))
        disk = "All models are on this machine."
        if absence := next(filter(None, map(absence_of, infos.values())), None):
            folder, free = plain_paths(str(absence.folder)), gb_text(absence.free_bytes)
            disk = f"Downloads are stored in {folder}, which has {free} GB of free space."
        is_busy = any(model["state"] in _BUSY for model in models)
        types = list(WEIGHT_TYPES.items())
        return {"models": models, "disk": disk, "weight_types": types, "is_busy": is_busy}

    def describe(self, name: str) -> dict[str, Any]:
        return self._describe(name, self._catalogue.info(name))

    def _describe(self, name: str, info: ModelInfo) -> dict[str, Any]:
        components = installed_components(info)
        here_bytes = sum(component.here_bytes for component in components)
        missing_bytes = sum(component.missing_bytes for component in components)
        is_hub, is_added = info.folder is None, ADDED_MODELS.find(name) is not None
        progress = self._service.downloads.progress(name)
        complete = all(component.is_complete for component in components)
        problems = self._service.downloads.problems(name) if is_hub else None
        memory_fact, sentences = self._memory(name, info)
        time_fact, time_sentence = self._time(name, info)
        size = f"{size_text(here_bytes)} on this machine" if here_bytes else ""
        if not complete:
            size = f"{f'{size}, about' if size else 'About'} {gb_text(missing_bytes)} GB to download"
        sources = info.components.values()
        repositories = dict.fromkeys(source.location for source in sources if source.revision is not None)
        absence = absence_of(info)
        state = progress.activity or _state(here_bytes, complete=complete)
        removal = _removal(info) if (is_hub and here_bytes) or is_added else None
        room = ""
        if absence and not (complete or absence.has_room):
            advice = "Free some, or set HF_HOME to a folder on a larger disk."
            room = f"There is not enough space: {absence.sizes}. {advice}"
        return {
            "model": name,
            "title": info.title,
            "purpose": info.purpose,
            "state": state,
            "label": _STATES[state],
            "is_hub": is_hub,
            "is_added": is_added,
            "here_bytes": here_bytes,
            "missing_bytes": missing_bytes,
            "size": size,
            "parts": [_component_facts(component) for component in components],
            "facts": " · ".join(filter(None, (size, memory_fact, time_fact))),
            "needs": [*sentences, time_sentence],
            "sources": [{"name": name, "address": f"{_HUB}{name}"} for name in repositories],
            "licence": info.licence,
            "progress": _progress(progress),
            "problem": " ".join(filter(None, map(page_words, (progress.message, progress.remedy)))) or room,
            "problems": None if problems is None else [*map(page_words, problems)],
            "removal": removal,
            "room": room,
            "actions": _actions(state, info, progress.message, is_here=here_bytes > 0, has_room=not room)
            + ([("remove", "Remove…")] if state not in _BUSY and (removal or is_added) else []),
            "asks": _asks(state, info, removal, absence),
        }

    def _request(self, name: str, info: ModelInfo) -> GenerationRequest:
        return GenerationRequest(image="any", model=self._catalogue.key(name), **info.default_settings)

    def _memory(self, name: str, info: ModelInfo) -> tuple[str, list[str]]:
        planner = self._catalogue.planner
        if not planner.has_cap:
            return "", ["Only the driver knows the card’s size, so the plan is made together with the video."]
        request = self._request(name, info)
        try:
            plan = planner.plan(request, info, None)
        except LongtakeError as error:
            fact = "does not fit this machine" if isinstance(error, DoesNotFit) else ""
            return fact, [" ".join(page_error(error))]
        cap, smallest_cap = compared_gb(planner.profile.cap_bytes.value, plan.job.smallest_cap_bytes)
        memory = "main memory" if planner.profile.machine.kind == "cpu" else "device memory"
        needs = f"A video needs at least {smallest_cap} GB of {memory}; the cap of this machine is {cap} GB."
        sentences = [needs, *limit_notes(plan.job, planner.profile)]
        if plan.waiting_bytes:
            free = host_memory().available
            time = f", in {plan.copy_time_text}," if plan.copy_time_text else ""
            sentences.append(
                f"{gb_text(plan.waiting_bytes)} GB of its weights are streamed in each step{time} and should "
                f"fit into main memory, of which {gb_text(free)} GB are free."
            )
        return f"needs {smallest_cap} GB of {memory}", sentences

    def _time(self, name: str, info: ModelInfo) -> tuple[str, str]:
        pace = self._paces.pace(self._catalogue.key(name))
        if pace is not None:
            seconds = about(pace.seconds(effort_of(self._request(name, info), info)))
            return f"a video of 5 s takes {seconds}", f"A video of 5 seconds takes {seconds} on this machine."
        if self._catalogue.planner.takes_days(info):
            return "takes days without a GPU", _TAKES_DAYS
        if times := self._catalogue.planner.forecast(self._request(name, info), info):
            fact = f"a video of 5 s takes {about(times.video_seconds.later)}"
            return f"{fact} ({times.step.source_words})", f"A video of 5 seconds: {times.text}"
        return "", "The first video will show how long it takes on this machine."


def copy_offer(info: ModelInfo, weight_dtype: str) -> dict[str, str]:
    dtype = SETTINGS["weight_dtype"].check(weight_dtype)
    name = f"{info.name}-{dtype}"
    try:
        return {"name": name, "words": _copy_words(info, name, dtype), "refusal": ""}
    except InputError as error:
        return {"name": "", "words": "", "refusal": error.message}


def _copy_words(info: ModelInfo, name: str, dtype: str) -> str:
    folder = ADDED_MODELS.copy_folder(name)
    if dtype in (AUTO, SETTINGS["weight_dtype"].default):
        raise InputError("A copy needs a type of its own.")
    if folder is None:
        raise InputError("There is no folder for the copy. Set HOME or XDG_DATA_HOME.")
    if name in model_names():
        raise InputError(f"There is already a model {name}.")
    if absence_of(info):
        raise InputError(f"{info.title} is not completely on this machine. Download it first.")
    try:
        size = set_ups.transformer_in(info, dtype).file_bytes
    except InputError as error:
        problem = "Its transformer is stored in GGUF or with scales, which cannot be converted."
        raise InputError(problem) from error
    free = shutil.disk_usage(next(parent for parent in folder.parents if parent.is_dir())).free
    if size >= free:
        needs = f"The copy needs {size_text(size)}, and {size_text(free)} are free."
        raise InputError(f"{needs} Free some space, or use models convert with --output.")
    location = plain_paths(str(folder))
    return (
        f"The copy, {name}, needs {size_text(size)} in {location}, where {size_text(free)} are free. "
        f"{info.title} stays as it is."
    )


def _state(here_bytes: int, *, complete: bool = False) -> str:
    if complete:
        return "complete"
    return "incomplete" if here_bytes else "missing"


def _actions(
    state: str, info: ModelInfo, message: str, *, is_here: bool, has_room: bool
) -> list[tuple[str, str]]:
    if state in _BUSY:
        cancel_labels = {"getting": "Cancel", "verifying": "Stop checking", "converting": "Stop converting"}
        return [*([("pause", "Pause")] if state == "getting" else []), ("cancel", cancel_labels[state])]
    actions: list[tuple[str, str]] = []
    if state == "complete":
        actions.append(("use", "Make a video with it"))
        if message:
            actions.append(("cancel", "Dismiss"))
        if info.folder is None and is_here:
            actions.append(("verify", "Verify"))
        return [*actions, ("convert", "Convert…")] if info.folder is not None or is_here else actions
    if info.folder is None and has_room:
        actions.append(("get", _GET_LABELS[state]))
    return [*actions, ("cancel", "Cancel")] if state in ("paused", "failed") else actions


def _asks(
    state: str, info: ModelInfo, removal: dict[str, Any] | None, absence: Absence | None
) -> dict[str, dict[str, str]]:
    title = info.title
    warning = f"This takes {title} off the list. Its files stay where they are."
    confirm_label = "Remove from the list"
    if removal is not None:
        confirm_label = f"Remove {removal['size']}"
        warning = f"This deletes {removal['size']} of {title}: {_listed(removal['parts'])}."
        if removal["kept"]:
            warning += f" Another model uses these parts, so they are kept: {_listed(removal['kept'])}."
    questions = {
        "remove": {"title": f"Remove {title}?", "words": warning, "sure": confirm_label},
        "convert": {"title": f"Convert {title}", "words": "Looking at the files…", "sure": "Convert"},
    }
    if state in ("missing", "incomplete") and absence is not None:
        text = (
            f"This downloads about {gb_text(absence.total_bytes)} GB from huggingface.co into "
            f"{plain_paths(str(absence.folder))}, where {gb_text(absence.free_bytes)} GB are free."
        )
        questions["get"] = {"title": f"Download {title}?", "words": text, "sure": "Download it"}
    return questions


def _listed(components: Iterable[str]) -> str:
    return ", ".join(component_title(component).lower() for component in components)


def component_title(component: str) -> str:
    return _COMPONENT_TITLES.get(component, component)


def _component_facts(component: InstalledComponent) -> dict[str, Any]:
    path, source = str(component.folder), plain_paths(component.source)
    # A folder in the hub's cache is shortened to its path there, and any other to what others may read.
    folder = path[path.index(_CACHE_PREFIX) :] if _CACHE_PREFIX in path else plain_paths(path)
    num_bytes = component.here_bytes or component.missing_bytes
    return {
        "part": component.component,
        "title": component_title(component.component),
        "state": "here" if component.is_complete else _state(component.here_bytes),
        "size": size_text(num_bytes) if num_bytes else "–",
        "folder": folder,
        "place": [folder, *([f"from {source}"] if source != folder else [])],
        "shared": [f"also for {', '.join(component.shared_with)}"] if component.shared_with else [],
    }


def _progress(progress: DownloadProgress) -> dict[str, Any]:
    done, total = progress.done_bytes, progress.total_bytes
    text = f"{gb_text(done)} of {gb_text(total)} GB"
    if total < GB:
        text = f"{size_text(done)} of {size_text(total)}" if total else ""
    if progress.bytes_per_second:
        text += f", {progress.bytes_per_second / 1e6:.1f} MB/s"
    if progress.seconds_left is not None and done < total:
        text += f", {about(progress.seconds_left)} left"
    is_interrupted = progress.activity in ("paused", "failed") and total > 0
    return asdict(progress) | {
        "is_shown": is_interrupted or progress.activity in _BUSY,
        "is_download": progress.activity not in ("verifying", "converting"),
        "percent": round(100 * min(1.0, done / (total or 1)), 1),
        "words": text or "Starting…",  # the program for it starts, which takes seconds
        "message": page_words(progress.message),
        "remedy": page_words(progress.remedy),
    }


def _removal(info: ModelInfo) -> dict[str, Any] | None:
    try:
        removal = plan_removal(info)
    except InputError:
        return None
    if not removal.files:
        return None
    return {
        "size": size_text(removal.num_bytes),
        "num_bytes": removal.num_bytes,
        "parts": list(removal.files),
        "kept": list(removal.kept),
    }

"""The facts about a model as the Models tab shows them: plain data, with sizes as text."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
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
from diffusers_helper.models.installed import InstalledPart, installed_parts, plan_removal
from diffusers_helper.models.registry import ModelInfo, model_names
from diffusers_helper.planning import set_ups
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.notes import limit_notes
from diffusers_helper.request import AUTO, SETTINGS, WEIGHT_TYPES, GenerationRequest
from diffusers_helper.units import GB, about, gb_text, size_text

_CACHED = "models--"  # begins the name of a repository's folder in the hub's cache
_HUB = "https://huggingface.co/"
_PARTS = {
    "transformer": "Transformer", "vae": "VAE", "text_encoder": "Text encoder", "tokenizer": "Its tokenizer",
    "text_encoder_2": "Second text encoder", "tokenizer_2": "Its tokenizer", "image_encoder": "Image encoder",
    "feature_extractor": "Its image processor", "scheduler": "Scheduler",
}  # fmt: skip
_STATES = {
    "complete": "On this machine", "incomplete": "Incomplete", "missing": "Not on this machine",
    "getting": "Downloading", "verifying": "Checking", "converting": "Converting", "paused": "Paused",
    "failed": "Download failed",
}  # fmt: skip
_BUSY = ("getting", "verifying", "converting")
_GET = {
    "paused": "Resume", "failed": "Try again", "missing": "Download", "incomplete": "Download the rest",
}  # fmt: skip
_TAKES_DAYS = "There is no GPU on this machine: a video of this model would take days."


class ModelPresenter:
    """The describer of the models that one page offers."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._catalogue = service, catalogue
        self._paces = PaceBook(service)

    def all(self) -> dict[str, Any]:
        """Return the facts about all models, the disk that downloads fill, and the types of weights."""
        infos = self._catalogue.infos
        models = [self._one(name, info) for name, info in infos.items()]
        disk = "All models are on this machine."
        if absence := next(filter(None, map(absence_of, infos.values())), None):
            folder, free = plain_paths(str(absence.folder)), gb_text(absence.free_bytes)
            disk = f"Downloads are stored in {folder}, which has {free} GB of free space."
        is_busy, types = any(one["state"] in _BUSY for one in models), list(WEIGHT_TYPES.items())
        return {"models": models, "disk": disk, "weight_types": types, "is_busy": is_busy}

    def one(self, name: str) -> dict[str, Any]:
        """Return the facts about one model.

        Raises:
            InputError: If the page does not offer it.
        """
        return self._one(name, self._catalogue.info(name))

    def _one(self, name: str, info: ModelInfo) -> dict[str, Any]:
        parts = installed_parts(info)
        here, missing = sum(one.here_bytes for one in parts), sum(one.missing_bytes for one in parts)
        is_hub, is_added = info.folder is None, ADDED_MODELS.find(name) is not None
        progress = self._service.downloads.progress(name)
        complete = all(one.is_complete for one in parts)
        problems = self._service.downloads.problems(name) if is_hub else None
        memory_fact, needs = self._memory(name, info)
        time_fact, time_sentence = self._time(name, info)
        size, absence = _size_words(here, missing, complete=complete), absence_of(info)
        state = progress.activity or ("complete" if complete else "incomplete" if here else "missing")
        removal = _removal(info) if (is_hub and here) or is_added else None
        room = "" if complete or absence is None or absence.has_room else _no_room(absence)
        return {
            "model": name,
            "title": info.title,
            "state": state,
            "label": _STATES[state],
            "is_hub": is_hub,
            "is_added": is_added,
            "here_bytes": here,
            "missing_bytes": missing,
            "size": size,
            "parts": [_part(one) for one in parts],
            "facts": " · ".join(filter(None, (size, memory_fact, time_fact))),
            "needs": [*needs, time_sentence],
            "sources": _sources(info),
            "licence": info.licence,
            "progress": _progress(progress),
            "problem": " ".join(filter(None, map(page_words, (progress.message, progress.remedy)))) or room,
            "problems": None if problems is None else [*map(page_words, problems)],
            "removal": removal,
            "room": room,
            "actions": _actions(state, info, progress.message, is_here=here > 0, has_room=not room)
            + ([("remove", "Remove…")] if state not in _BUSY and (removal or is_added) else []),
            "asks": _asks(state, info, removal, absence),
        }

    def _request(self, name: str, info: ModelInfo) -> GenerationRequest:
        return GenerationRequest(image="any", model=self._catalogue.key(name), **info.own_settings)

    def _memory(self, name: str, info: ModelInfo) -> tuple[str, list[str]]:
        planner = self._catalogue.planner
        if not planner.knows_the_size:
            return "", ["Only the driver knows the card’s size, so the plan is made together with the video."]
        request = self._request(name, info)
        cap = gb_text(planner.profile.cap_bytes.value)
        try:
            plan = planner.plan(request, info, None)
        except LongtakeError as error:
            fact = "does not fit this machine" if isinstance(error, DoesNotFit) else ""
            return fact, [" ".join(page_error(error))]
        least = gb_text(plan.job.smallest_cap_bytes, up=True)
        where = "main memory" if planner.profile.machine.kind == "cpu" else "device memory"
        reported = [f"A video needs at least {least} GB of {where}; the cap of this machine is {cap} GB."]
        reported += limit_notes(plan.job, planner.profile)
        if plan.waiting_bytes:
            free = host_memory().available
            time = f", in {plan.time_words}," if plan.time_words else ""
            reported.append(
                f"{gb_text(plan.waiting_bytes)} GB of its weights are streamed in each step{time} and should "
                f"fit into main memory, of which {gb_text(free)} GB are free."
            )
        return f"needs {least} GB of {where}", reported

    def _time(self, name: str, info: ModelInfo) -> tuple[str, str]:
        pace = self._paces.pace(self._catalogue.key(name))
        if pace is not None:
            seconds = about(pace.seconds(effort_of(self._request(name, info), info)))
            return f"a video of 5 s takes {seconds}", f"A video of 5 seconds takes {seconds} on this machine."
        if self._catalogue.planner.takes_days(info):
            return "takes days without a GPU", _TAKES_DAYS
        if times := self._catalogue.planner.forecast(self._request(name, info), info):
            fact = f"a video of 5 s takes {about(times.video_seconds.later)}"
            return f"{fact} ({times.step.source_words})", f"A video of 5 seconds: {times.words}"
        return "", "The first video will show how long it takes on this machine."


def copy_offer(info: ModelInfo, weight_dtype: str) -> dict[str, str]:
    """Return what a converted copy of a model would need, in words, or a refusal.

    Raises:
        InputError: If there is no such type of weights.
        LongtakeError: If a local model's files cannot be read.
    """
    dtype = SETTINGS["weight_dtype"].check(weight_dtype)
    name = f"{info.name}-{dtype}"
    folder = ADDED_MODELS.copy_folder(name)
    if dtype in (AUTO, SETTINGS["weight_dtype"].default):
        return _refused("A copy needs a type of its own.")
    if folder is None:
        return _refused("There is no folder for the copy. Set HOME or XDG_DATA_HOME.")
    if name in model_names():
        return _refused(f"There is already a model {name}.")
    if absence_of(info):
        return _refused(f"{info.title} is not completely on this machine. Download it first.")
    try:
        size = set_ups.transformer_in(info, dtype).file_bytes
    except InputError:
        return _refused("Its transformer is stored in GGUF or with scales, which cannot be converted.")
    free = shutil.disk_usage(next(one for one in folder.parents if one.is_dir())).free
    if size >= free:
        needs = f"The copy needs {size_text(size)}, and {size_text(free)} are free."
        return _refused(f"{needs} Free some space, or use models convert with --output.")
    place = plain_paths(str(folder))
    words = (
        f"The copy, {name}, needs {size_text(size)} in {place}, where {size_text(free)} are free. "
        f"{info.title} stays as it is."
    )
    return {"name": name, "words": words, "refusal": ""}


def _refused(reason: str) -> dict[str, str]:
    return {"name": "", "words": "", "refusal": reason}


def card_plans(info: ModelInfo, name: str, weight_dtype: str) -> list[dict[str, Any]]:
    """Return the plans of a video on cards of several sizes, as rows of text."""
    request = GenerationRequest(
        image="any", model=name, mode=info.modes[0], steps=info.steps, weight_dtype=weight_dtype
    )
    return [_card(plan) for plan in set_ups.plans_by_card(request, info)]


def format_plans(info: ModelInfo, name: str) -> dict[str, Any]:
    """Return the plans for each format of the transformer's file, as rows of text with one cell a card."""
    request = GenerationRequest(image="any", model=name, mode=info.modes[0], steps=info.steps)
    rows = [
        {
            "format": ", ".join(one.formats),
            "file": gb_text(one.file_bytes),
            "default": [card.short(card.default) for card in one.cards],
            "automatic": [card.short(card.fewest_copies) for card in one.cards],
        }
        for one in set_ups.plans_by_format(request, info)
    ]
    return {"cards": [f"{size} GB" for size in set_ups.CARDS_GB], "rows": rows}


def _card(plan: set_ups.CardPlan) -> dict[str, Any]:
    return asdict(plan) | {
        "card": f"{plan.card_gb} GB",
        "cap": gb_text(plan.default.cap_bytes if plan.default else plan.cap_bytes),
        "least": gb_text(plan.smallest_cap_bytes, up=True),
        "rows": [list(fit.cells[1:]) for fit in plan.fits],
    }


def _size_words(here: int, missing: int, *, complete: bool) -> str:
    if complete:
        return f"{size_text(here)} on this machine"
    if not here:
        return f"About {gb_text(missing)} GB to download"
    return f"{size_text(here)} on this machine, about {gb_text(missing)} GB to download"


def _actions(
    state: str, info: ModelInfo, message: str, *, is_here: bool, has_room: bool
) -> list[tuple[str, str]]:
    """Return what can be done with a model, apart from its removal: the verbs and their labels."""
    if state in _BUSY:
        ends = {"getting": "Cancel", "verifying": "Stop checking", "converting": "Stop converting"}
        return [*([("pause", "Pause")] if state == "getting" else []), ("cancel", ends[state])]
    found: list[tuple[str, str]] = []
    if state == "complete":
        found.append(("use", "Make a video with it"))
        if message:
            found.append(("cancel", "Dismiss"))
        if info.folder is None and is_here:
            found.append(("verify", "Verify"))
        return [*found, ("convert", "Convert…")] if info.folder is not None or is_here else found
    if info.folder is None and has_room:
        found.append(("get", _GET[state]))
    return [*found, ("cancel", "Cancel")] if state in ("paused", "failed") else found


def _asks(
    state: str, info: ModelInfo, removal: dict[str, Any] | None, absence: Absence | None
) -> dict[str, dict[str, str]]:
    """Return the questions before actions, with the label of the answer that carries them out."""
    title = info.title
    loss, sure = f"This takes {title} off the list. Its files stay where they are.", "Remove from the list"
    if removal is not None:
        sure, listed, kept = f"Remove {removal['size']}", _listed(removal["parts"]), _listed(removal["kept"])
        loss = f"This deletes {removal['size']} of {title}: {listed}."
        loss += f" Another model uses these parts, so they are kept: {kept}." if kept else ""
    asks = {
        "remove": {"title": f"Remove {title}?", "words": loss, "sure": sure},
        "convert": {"title": f"Convert {title}", "words": "Looking at the files…", "sure": "Convert"},
    }
    if state in ("missing", "incomplete") and absence is not None:
        words = (
            f"This downloads about {gb_text(absence.total_bytes)} GB from huggingface.co into "
            f"{plain_paths(str(absence.folder))}, where {gb_text(absence.free_bytes)} GB are free."
        )
        asks["get"] = {"title": f"Download {title}?", "words": words, "sure": "Download it"}
    return asks


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(part_title(part).lower() for part in parts)


def part_title(part: str) -> str:
    """Return the name of a part as people read it."""
    return _PARTS.get(part, part)


def _part(one: InstalledPart) -> dict[str, Any]:
    folder, source = _place(one.folder), plain_paths(one.source)
    num_bytes = one.here_bytes or one.missing_bytes
    return {
        "part": one.part,
        "title": part_title(one.part),
        "state": "here" if one.is_complete else "incomplete" if one.here_bytes else "missing",
        "size": size_text(num_bytes) if num_bytes else "–",
        "folder": folder,
        "place": [folder, *([f"from {source}"] if source != folder else [])],
        "shared": [f"also for {', '.join(one.shared_with)}"] if one.shared_with else [],
    }


def _place(folder: Path) -> str:
    """Return a folder relative to the hub's cache if it lies there, without the names above it."""
    place = str(folder)
    return place[place.index(_CACHED) :] if _CACHED in place else plain_paths(place)


def _sources(info: ModelInfo) -> list[dict[str, str]]:
    names = dict.fromkeys(source.location for source in info.parts.values() if source.revision is not None)
    return [{"name": name, "address": f"{_HUB}{name}"} for name in names]


def _progress(progress: DownloadProgress) -> dict[str, Any]:
    words = _pair(progress.done_bytes, progress.total_bytes) if progress.total_bytes else ""
    if progress.bytes_per_second:
        words += f", {progress.bytes_per_second / 1e6:.1f} MB/s"
    if progress.seconds_left is not None and progress.done_bytes < progress.total_bytes:
        words += f", {about(progress.seconds_left)} left"
    share = progress.done_bytes / progress.total_bytes if progress.total_bytes else 0.0
    rests = progress.activity in ("paused", "failed") and progress.total_bytes > 0
    return asdict(progress) | {
        "is_shown": rests or progress.activity in _BUSY,
        "is_download": progress.activity not in ("verifying", "converting"),
        "percent": round(100 * min(1.0, share), 1),
        "words": words or "Starting…",  # the program for it starts, which takes seconds
        "message": page_words(progress.message),
        "remedy": page_words(progress.remedy),
    }


def _pair(done: int, total: int) -> str:
    if total < GB:
        return f"{size_text(done)} of {size_text(total)}"
    return f"{gb_text(done)} of {gb_text(total)} GB"


def _removal(info: ModelInfo) -> dict[str, Any] | None:
    """Return what the removal of a model would free; None if nothing of it alone is here."""
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


def _no_room(absence: Absence) -> str:
    return (
        f"There is not enough space: {absence.sizes}. Free some, or set HF_HOME to a folder on a larger disk."
    )

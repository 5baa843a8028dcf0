"""The calls of the models. Those with the name of a verb of `longtake models` have its effect.

The weights in a user's own folder are known to the page by name alone. Their calls may take
seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from app.jobs.job import BEGUN
from app.jobs.service import JobService
from app.redact import plain_paths
from app.ui.api import api_router
from app.ui.catalogue import Catalogue
from app.ui.fields import File, Text, Values
from app.ui.models.present import ModelPresenter, card_plans, component_title, copy_offer, format_plans
from app.ui.pictures import add_upload
from diffusers_helper.errors import InputError, LongtakeError, first_line, short_repr
from diffusers_helper.families.registry import models_by_component
from diffusers_helper.files import file_signature, named_folder, visible_files
from diffusers_helper.models.added import check_new_name, name_for
from diffusers_helper.models.installed import remove
from diffusers_helper.models.registry import find_model
from diffusers_helper.units import size_text
from diffusers_helper.weights.inspection import STANDARD_NAMES, Inspection, inspect_weights, is_shard
from diffusers_helper.weights.reading import INDEX, SUFFIXES, names_weights, weight_files
from diffusers_helper.weights.tensors import layout_problem

VARIABLE = "LONGTAKE_WEIGHTS"
_MOST_LISTED, _MOST_SIGNS = 400, 1000


class ModelCalls:
    """The calls of one service: each public method is one, which programs know by its docstring."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._downloads = service, service.downloads
        self._catalogue, self._presenter = catalogue, ModelPresenter(service, catalogue)

    def models_list(self) -> dict[str, Any]:
        """List the models, with their parts, sizes, needs and downloads, and the disk that downloads fill."""
        return self._presenter.describe_all()

    def models_get(self, model: Text) -> dict[str, Any]:
        """Download a model beside the queue, or resume a download that is paused or has failed."""
        self._downloads.get(model)
        return self._presenter.describe(model)

    def models_pause(self, model: Text) -> dict[str, Any]:
        """Pause a download until `models_get` is called; the downloaded files stay."""
        return self._asked(model, self._downloads.pause)

    def models_cancel(self, model: Text) -> dict[str, Any]:
        """Withdraw a download, a check or a conversion; downloaded files stay until the model is removed."""
        return self._asked(model, self._downloads.cancel)

    def models_verify(self, model: Text) -> dict[str, Any]:
        """Begin to compare the checksums of a model's files; `problems` of `models_list` has the result."""
        return self._asked(model, partial(self._downloads.begin, "verify"))

    def _asked(self, model: str, ask: Callable[[str], object]) -> dict[str, Any]:
        find_model(model)
        ask(model)
        return self._presenter.describe(model)

    def models_copy(self, model: str, weight_dtype: str) -> dict[str, Any]:
        """Tell what a conversion would write and where, or why it is not possible."""
        return copy_offer(self._catalogue.info(model), weight_dtype)

    def models_convert(self, model: Text, weight_dtype: Text) -> dict[str, Any]:
        """Write a copy of a model's transformer in another type, beside the queue, as a model of its own."""
        offer = copy_offer(self._catalogue.info(model), weight_dtype)
        if offer["refusal"]:
            raise InputError(offer["refusal"])
        self._downloads.begin("convert", model, weight_dtype)
        return self._presenter.describe(model)

    def models_remove(self, model: Text) -> dict[str, Any]:
        """Remove a downloaded model, except for parts that another one uses, or forget an added one."""
        first, others = self._service.open_jobs()
        begun = (job for job in (first, *others) if job is not None and job.state in BEGUN)
        if any(job.request.model == model for job in begun):
            raise InputError(
                f"A video is being made with {model}; expected a model that is not in use.",
                "Remove it when the video is finished.",
            )
        info = find_model(model)
        self._downloads.cancel(model)
        try:
            removal = remove(info)
        except OSError as error:
            raise LongtakeError(
                f"A file of {model} cannot be removed ({error.strerror}).", "Check the rights of its folder."
            ) from error
        return {
            "model": model, "removed_bytes": removal.num_bytes, "parts": list(removal.files),
            "kept": {part: list(users) for part, users in removal.kept.items()},
        }  # fmt: skip

    def models_formats(self, model: str) -> dict[str, Any]:
        """Tell what these cards would do with the weights if the transformer's file had another format."""
        return format_plans(self._catalogue.info(model), self._catalogue.key(model))

    def models_plan(self, model: str, weight_dtype: str = "default") -> list[dict[str, Any]]:
        """Tell what cards of 8 to 24 GB would do with a model's weights, for its own settings otherwise."""
        return card_plans(self._catalogue.info(model), self._catalogue.key(model), weight_dtype)


def weights_folder(environ: Mapping[str, str]) -> Path:
    """Find the folder that the environment names, or `weights` in the current folder. It need not exist.

    Raises:
        InputError: If there is no such home folder.
    """
    return named_folder(environ, VARIABLE, "weights")


def weights_names(folder: Path) -> list[str]:
    """List what the folder and its folders hold, sorted, by paths relative to it.

    These are single files with weights, indices of several files, and folders in diffusers' layout.
    """
    return sorted(set(_names(folder)), key=lambda name: (name.lower(), name))


def _names(folder: Path) -> Iterator[str]:
    for place, files in visible_files(folder):
        here = place.relative_to(folder)
        weights = [name for name in files if names_weights(name, (*SUFFIXES, INDEX))]
        names = [here.as_posix()] if here.parts and _is_part(files, weights) else []
        names = names or [(here / name).as_posix() for name in weights if not is_shard(Path(name))]
        yield from (name for name in names if name.isprintable())


def _is_part(files: Collection[str], weights: Collection[str]) -> bool:
    lower = [name.lower() for name in weights]
    plain = [name for name in lower if name.endswith(".safetensors")]
    is_clear = len(plain) == 1 or any(name in STANDARD_NAMES or name.endswith(INDEX) for name in lower)
    return "config.json" in files and bool(plain) and is_clear


def listed_files(folder: Path, taken: Collection[str]) -> dict[str, Any]:
    """List what can be chosen from the folder: first what can be a part, then the rest with its problems.

    Args:
        folder: The folder.
        taken: The names of the models that there are, which are not suggested for a new one.
    """
    names = weights_names(folder)
    files = [_entry(folder, name) | {"model": name_for(_stem(name), taken)} for name in names[:_MOST_LISTED]]
    more = max(0, len(names) - _MOST_LISTED)
    say = "Tick one file of the folder “{}” for each part of a new model. To use another folder,"
    if not files:
        say = "Put files with weights into the folder “{}”. To use another one, such as ComfyUI's models,"
    words = (
        f"{say.format(folder.name)} set the environment variable {VARIABLE} to it and start Longtake again."
    )
    return {
        "folder": folder.name, "variable": VARIABLE,
        "files": sorted(files, key=lambda file: not file["part"]),
        "more": more, "words": f"{words} {more} more files are not listed." if more else words,
    }  # fmt: skip


def facts_of(folder: Path, name: str) -> dict[str, Any]:
    """Tell what `longtake inspect` says of an entry of the folder, without paths.

    Raises:
        InputError: If the folder has no such entry, or it cannot be read.
    """
    (path,) = paths_of(folder, [name])
    facts = asdict(inspected(path))
    del facts["path"]  # Gradio's client takes an object with a path for a file to download
    return facts | {"file": name, "problems": [plain_paths(problem) for problem in facts["problems"]]}


def paths_of(folder: Path, names: Collection[str]) -> list[Path]:
    """Find the paths of entries of the folder.

    Raises:
        InputError: If the folder has no such entry, which no path outside of it is.
    """
    allowed_names = set(weights_names(folder))
    for name in names:
        if name not in allowed_names:
            raise InputError(
                f"{short_repr(name)} is not in the folder for weights; expected one of its files.",
                "Look again, and choose another one.",
            )
    return [folder / name for name in names]


def inspected(path: Path) -> Inspection:
    """Read the facts about an entry, which are read again only if its files have changed.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        place = path.parent if path.name.lower().endswith(INDEX) else path
        files = sorted(place.iterdir())[:_MOST_SIGNS] if place.is_dir() else [place]
        return _remembered(path, tuple(file_signature(file) for file in files if file.exists()))
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read ({error.strerror or first_line(error)}).",
            "Check its rights, or choose another one.",
        ) from error


@lru_cache(maxsize=2 * _MOST_LISTED)
def _remembered(path: Path, signs: tuple[object, ...]) -> Inspection:
    return inspect_weights(path)


def _check_upload(path: Path) -> None:
    if problems := inspect_weights(path).problems:
        raise InputError(plain_paths(problems[0]), "Choose another file.")


def _entry(folder: Path, name: str) -> dict[str, Any]:
    """Read the facts about one entry: the part that it can be, or "" and a problem."""
    path = folder / name
    try:
        facts = inspected(path)
    except InputError as error:
        return {"name": name, "part": "", "title": "", "words": "", "problem": error.message}
    models = facts.model.split(" + ")
    part = next(
        (part for part, component_models in models_by_component().items() if {*component_models} & {*models}),
        "",
    )
    problem = plain_paths(next(iter(facts.problems), ""))
    if facts.model == "LoRA":
        problem = "This is a LoRA, which belongs into the folder for LoRAs and is chosen for each video."
    if not problem and facts.layout:
        problem = f"{path.name} {layout_problem(facts.layout)}"
    if not problem and not part:
        problem = f"{facts.model or 'This file'} cannot be a part of a model."
    if not problem and path.name.lower().endswith(INDEX):
        problem = "Shards can only be used from a folder that has their config.json, too."
    if not problem and path.is_dir() and not weight_files(path):
        problem = "In a folder, only safetensors files can be used."
    part = "" if problem else part
    return {
        "name": name, "part": part, "title": component_title(part), "words": _words(facts),
        "problem": problem,
    }  # fmt: skip


def _stem(name: str) -> str:
    last = Path(name).name.removesuffix(INDEX)
    return Path(last).stem if last.lower().endswith(SUFFIXES) else last


def _words(facts: Inspection) -> str:
    model = " ".join(filter(None, (facts.model, facts.variant)))
    return ", ".join(filter(None, (model, facts.types, size_text(facts.file_bytes))))


class OwnFileCalls:
    """The calls of one service: each public method is one, which programs know by its docstring."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._adding = service.downloads.adding
        self._catalogue, self._presenter = catalogue, ModelPresenter(service, catalogue)

    def models_files(self) -> dict[str, Any]:
        """List the weights in the folder for them, with the part that each file or folder can be.

        `adding` is the model that is being added now, if any, or why the last one was not.
        """
        return listed_files(weights_folder(os.environ), self._catalogue.names) | {
            "adding": self._adding.facts()
        }

    def models_inspect(self, file: str) -> dict[str, Any]:
        """Tell what the headers of a file or folder of that list say, as `longtake inspect` does."""
        return facts_of(weights_folder(os.environ), file)

    def models_file_add(self, file: File, name: Text) -> str:
        """Copy an uploaded file with weights to the folder for them, and return its name there."""
        return add_upload(file, name, weights_folder(os.environ), (".safetensors", ".gguf"), _check_upload)

    def models_add(self, model: Text, parts: Values, base: Text = "") -> dict[str, Any]:
        """Add a model of files in the folder for weights: `parts` has the name of a file by that of a part.

        The other parts are those of `base`, or of the model that fits the transformer.
        """
        check_new_name(model)
        if model in self._catalogue.names:
            raise InputError(f"There is already a model {model}.", "Choose another name.")
        components = models_by_component()
        if not parts or parts.keys() - components.keys():
            given_parts = ", ".join(map(short_repr, parts)) or "empty"
            raise InputError(
                f"parts is {given_parts}; expected some of {', '.join(components)}.", "Correct it."
            )
        paths = paths_of(weights_folder(os.environ), [str(file) for file in parts.values()])
        for part, path in zip(parts, paths, strict=True):
            for problem in inspected(path).problems:  # a process without limits reads it next, with torch
                raise InputError(
                    f"The {part} cannot be used: {plain_paths(problem)} Nothing was added.",
                    "Choose another file.",
                )
        if base and base not in self._catalogue.names:
            components = ", ".join(self._catalogue.names)
            raise InputError(f"base is {short_repr(base)}; expected one of {components}.", "Correct it.")
        key = self._catalogue.key(base) if base else ""
        self._adding.add(model, dict(zip(parts, paths, strict=True)), key)
        return self._presenter.describe(model)


def models_router(models: ModelCalls, files: OwnFileCalls) -> APIRouter:
    router = api_router("models")
    router.get("")(models.models_list)
    router.get("/copy")(models.models_copy)
    router.get("/files")(files.models_files)
    router.get("/inspect")(files.models_inspect)
    router.post("/get")(models.models_get)
    router.post("/pause")(models.models_pause)
    router.post("/cancel")(models.models_cancel)
    router.post("/verify")(models.models_verify)
    router.post("/convert")(models.models_convert)
    router.post("/remove")(models.models_remove)
    router.post("/add")(files.models_add)
    router.post("/files/add")(files.models_file_add)
    return router

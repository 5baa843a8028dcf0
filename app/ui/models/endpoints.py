"""The calls of the models. Those with the name of a verb of `longtake models` have its effect."""

import os
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from app.jobs.job import BEGUN
from app.jobs.service import JobService
from app.redact import plain_paths
from app.ui.catalogue import Catalogue
from app.ui.models.present import ModelPresenter, component_title, copy_offer
from app.ui.pictures import Upload, add_upload, uploaded
from diffusers_helper.errors import InputError, LongtakeError, first_line, short_repr
from diffusers_helper.families.registry import models_by_component
from diffusers_helper.files import file_signature
from diffusers_helper.models.added import check_new_name, name_for
from diffusers_helper.models.installed import remove
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.planning import set_ups
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import size_text
from diffusers_helper.weights.folder import VARIABLE, weights_folder, weights_names
from diffusers_helper.weights.inspection import Inspection, inspect_weights
from diffusers_helper.weights.reading import INDEX, SUFFIXES, weight_files
from diffusers_helper.weights.tensors import layout_problem

_MOST_LISTED, _MOST_SIGNS = 400, 1000


class ModelCalls:
    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._service, self._downloads = service, service.downloads
        self._catalogue, self._presenter = catalogue, ModelPresenter(service, catalogue)

    def models_list(self) -> dict[str, Any]:
        """List the models, with their parts, sizes, needs and downloads, and the disk that downloads fill."""
        return self._presenter.describe_all()

    def models_get(self, model: str) -> dict[str, Any]:
        """Download a model beside the queue, or resume a download that is paused or has failed."""
        self._downloads.get(model)
        return self._presenter.describe(model)

    def models_pause(self, model: str) -> dict[str, Any]:
        """Pause a download until `models_get` is called; the downloaded files stay."""
        return self._asked(model, self._downloads.pause)

    def models_cancel(self, model: str) -> dict[str, Any]:
        """Withdraw a download, a check or a conversion; downloaded files stay until the model is removed."""
        return self._asked(model, self._downloads.cancel)

    def models_verify(self, model: str) -> dict[str, Any]:
        """Begin to compare the checksums of a model's files; `problems` of `models_list` has the result."""
        return self._asked(model, partial(self._downloads.begin, "verify"))

    def _asked(self, model: str, ask: Callable[[str], object]) -> dict[str, Any]:
        find_model(model)
        ask(model)
        return self._presenter.describe(model)

    def models_copy(self, model: str, weight_dtype: str) -> dict[str, Any]:
        """Tell what a conversion would write and where, or why it is not possible."""
        return copy_offer(self._catalogue.info(model), weight_dtype)

    def models_convert(self, model: str, weight_dtype: str) -> dict[str, Any]:
        """Write a copy of a model's transformer in another type, beside the queue, as a model of its own."""
        offer = copy_offer(self._catalogue.info(model), weight_dtype)
        if offer["refusal"]:
            raise InputError(offer["refusal"])
        self._downloads.begin("convert", model, weight_dtype)
        return self._presenter.describe(model)

    def models_remove(self, model: str) -> dict[str, Any]:
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

    def models_formats(self, model: str) -> list[dict[str, Any]]:
        """Tell what these cards would do with the weights if the transformer's file had another format."""
        return [asdict(plan) for plan in set_ups.plans_by_format(*self._usual(model, "default"))]

    def models_plan(self, model: str, weight_dtype: str = "default") -> list[dict[str, Any]]:
        """Tell what cards of 8 to 24 GB would do with a model's weights, for its own settings otherwise."""
        return [asdict(plan) for plan in set_ups.plans_by_card(*self._usual(model, weight_dtype))]

    def _usual(self, model: str, weight_dtype: str) -> tuple[GenerationRequest, ModelInfo]:
        info, name = self._catalogue.info(model), self._catalogue.key(model)
        settings = {"mode": info.modes[0], "steps": info.steps, "weight_dtype": weight_dtype}
        return GenerationRequest(image="any", model=name, **settings), info

    def models_files(self) -> dict[str, Any]:
        """List the weights in the folder for them, with the part that each file or folder can be.

        `adding` is the model that is being added now, if any, or why the last one was not.
        """
        return listed_files(weights_folder(os.environ), self._catalogue.names) | {
            "adding": self._downloads.adding.facts()
        }

    def models_inspect(self, file: str) -> dict[str, Any]:
        """Tell what the headers of a file or folder of that list say, as `longtake inspect` does."""
        return facts_of(weights_folder(os.environ), file)

    def models_file_add(self, file: Upload, name: str) -> str:
        """Copy an uploaded file with weights to the folder for them, and return its name there."""
        if problems := inspect_weights(uploaded(file)).problems:
            raise InputError(plain_paths(problems[0]), "Choose another file.")
        return add_upload(file, name, weights_folder(os.environ), (".safetensors", ".gguf"))

    def models_add(self, model: str, parts: dict[str, Any], base: str = "") -> dict[str, Any]:
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
        if base:
            self._catalogue.info(base)  # which refuses what is none of the models
        key = self._catalogue.key(base) if base else ""
        self._downloads.adding.add(model, dict(zip(parts, paths, strict=True)), key)
        return self._presenter.describe(model)


def listed_files(folder: Path, taken: Collection[str]) -> dict[str, Any]:
    """List what can be a part of a model, then the rest; no name that is `taken` is suggested."""
    names = weights_names(folder)
    files = list[dict[str, Any]]()
    for name in names[:_MOST_LISTED]:
        last = Path(name).name.removesuffix(INDEX)
        stem = Path(last).stem if last.lower().endswith(SUFFIXES) else last
        files.append(_entry(folder, name) | {"model": name_for(stem, taken)})
    more = max(0, len(names) - _MOST_LISTED)
    say = f"Put files with weights into the folder “{folder.name}”."
    if files:
        say = f"Tick one file of the folder “{folder.name}” for each part of a new model."
    other = (
        f"To use another folder, such as ComfyUI's models, set the environment variable {VARIABLE} to it and "
        "start Longtake again."
    )
    words = f"{say} {other}"
    return {
        "folder": folder.name, "variable": VARIABLE,
        "files": sorted(files, key=lambda file: not file["part"]),
        "more": more, "words": f"{words} {more} more files are not listed." if more else words,
    }  # fmt: skip


def facts_of(folder: Path, name: str) -> dict[str, Any]:
    """Tell what `longtake inspect` says of an entry of the folder, without paths."""
    (path,) = paths_of(folder, [name])
    facts = asdict(inspected(path))
    del facts["path"]  # Gradio's client takes an object with a path for a file to download
    return facts | {"file": name, "problems": [plain_paths(problem) for problem in facts["problems"]]}


def paths_of(folder: Path, names: Collection[str]) -> list[Path]:
    allowed_names = set(weights_names(folder))
    for name in names:
        if name not in allowed_names:
            raise InputError(
                f"{short_repr(name)} is not in the folder for weights; expected one of its files.",
                "Look again, and choose another one.",
            )
    return [folder / name for name in names]


def inspected(path: Path) -> Inspection:
    """Read the facts about an entry, which are read again only if its files have changed."""
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


def _entry(folder: Path, name: str) -> dict[str, Any]:
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
    model = " ".join(filter(None, (facts.model, facts.variant)))
    words = ", ".join(filter(None, (model, facts.types, size_text(facts.file_bytes))))
    return {"name": name, "part": part, "title": component_title(part), "words": words, "problem": problem}

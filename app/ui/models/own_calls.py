"""The endpoints of a user's own files, apart from the others, since they may take seconds."""

from __future__ import annotations

import os
from typing import Any

from app.jobs.service import JobService
from app.redact import plain_paths
from app.ui.catalogue import Catalogue
from app.ui.models.own_files import facts_of, inspected, listed_files, paths_of, weights_folder
from app.ui.models.present import ModelPresenter
from diffusers_helper.errors import InputError, short_repr
from diffusers_helper.models.added import check_new_name
from diffusers_helper.weights.recognition import PART_MODELS


class OwnFileCalls:
    """The endpoints of one service: each public method is one, which programs know by its docstring."""

    def __init__(self, service: JobService, catalogue: Catalogue) -> None:
        self._adding = service.downloads.adding
        self._catalogue, self._presenter = catalogue, ModelPresenter(service, catalogue)

    @property
    def all(self) -> list[Any]:
        """Return all endpoints."""
        return [getattr(self, name) for name in vars(OwnFileCalls) if name.startswith("models_")]

    def models_files(self) -> dict[str, Any]:
        """List the weights in the folder for them, with the part that each file or folder can be.

        `adding` is the model that is being added now, if any, or why the last one was not.
        """
        return listed_files(weights_folder(os.environ), self._catalogue.names) | {
            "adding": self._adding.facts()
        }

    def models_inspect(self, file: str) -> dict[str, Any]:
        """Return what the headers of a file or folder of that list tell, as `python -m app inspect` does."""
        return facts_of(weights_folder(os.environ), file)

    def models_add(self, model: str, parts: dict[str, Any], base: str = "") -> dict[str, Any]:
        """Add a model of files in the folder for weights: `parts` has the name of a file by that of a part.

        The other parts are those of `base`, or of the model that fits the transformer.
        """
        check_new_name(model)
        if model in self._catalogue.names:
            raise InputError(f"There is already a model {model}.", "Choose another name.")
        if not parts or parts.keys() - PART_MODELS.keys():
            found = ", ".join(map(short_repr, parts)) or "empty"
            raise InputError(f"parts is {found}; expected some of {', '.join(PART_MODELS)}.", "Correct it.")
        paths = paths_of(weights_folder(os.environ), [str(file) for file in parts.values()])
        for part, path in zip(parts, paths, strict=True):
            for problem in inspected(path).problems:  # a process without limits reads it next, with torch
                raise InputError(
                    f"The {part} cannot be used: {plain_paths(problem)} Nothing was added.",
                    "Choose another file.",
                )
        if base and base not in self._catalogue.names:
            known = ", ".join(self._catalogue.names)
            raise InputError(f"base is {short_repr(base)}; expected one of {known}.", "Correct it.")
        key = self._catalogue.key(base) if base else ""
        self._adding.add(model, dict(zip(parts, paths, strict=True)), key)
        return self._presenter.one(model)

"""The models that a user has added: other models with some components in place of their own."""

import contextlib
import json
import logging
import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from diffusers_helper.errors import InputError, first_line, short_repr
from diffusers_helper.files import write_atomic
from diffusers_helper.machine.file_locks import take_lock
from diffusers_helper.untrusted.limited_json import read_json

_log = logging.getLogger(__name__)
_COPIES = "models"  # the folder of the converted copies, beside the list
FILE_NAME = "models.json"
PUT_BACK = "put it back, or remove the model and add it again"  # the remedy for a file that is gone
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
_NO_NAME = re.compile(r"[^a-z0-9._-]+")
_MAX_DERIVED_LENGTH = 40  # of a name that is made of a path


def check_new_name(name: str, taken_names: Collection[str] = ()) -> None:
    if not _NAME.fullmatch(name) or name in taken_names:
        raise InputError(
            f"The model's name is {short_repr(name)}; expected a new name of small letters, digits and . _ - "
            "that begins with a letter or a digit.",
            "Choose another name.",
            setting="model",
        )


def name_for(path: str, taken_names: Collection[str] = ()) -> str:
    base_name = _NO_NAME.sub("-", Path(path).name.lower())[:_MAX_DERIVED_LENGTH].strip("-._") or "model"
    names = (base_name, *(f"{base_name}-{number}" for number in range(2, len(taken_names) + 3)))
    return next(name for name in names if name not in taken_names)


@dataclass(frozen=True, slots=True)
class AddedComponent:
    """A component of a user's model: a folder in diffusers' layout, or a file with its configuration."""

    path: str
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A user's model: another one, or the folder of one, with some components in place of its own."""

    name: str
    title: str
    base: str
    parts: Mapping[str, AddedComponent]
    copy: str = ""


class AddedModels:
    """The list of added models in a file, which a program sets once at its start; None for no models."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file

    @property
    def revision(self) -> str:
        """A text that changes whenever any program has changed the list; "" for no list."""
        try:
            status = None if self.file is None else self.file.stat()
        except OSError:
            return ""
        return "" if status is None else f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"

    def copy_folder(self, name: str) -> Path | None:
        return None if self.file is None else self.file.parent / _COPIES / name

    def bases(self) -> dict[str, str]:
        try:
            return {name: model.base for name, model in self._read().items()}
        except InputError as error:
            _log.warning("%s", error)
            return {}

    def find(self, name: str) -> AddedModel | None:
        return self._read().get(name)

    def check_free(self, name: str) -> None:
        if name in self._read():
            raise InputError(
                f"There is already a model {name}.",
                f"Choose another name, or take that model off the list: models remove {name}.",
                setting="model",
            )

    def add(self, model: AddedModel) -> None:
        with self._edited() as models:
            self.check_free(model.name)
            models[model.name] = model

    def remove(self, name: str) -> None:
        with self._edited() as models:
            models.pop(name, None)

    @contextlib.contextmanager
    def _edited(self) -> Generator[dict[str, AddedModel]]:
        """Yield the models by name, for changes that are then written, under a lock."""
        if self.file is None:
            raise InputError("There is no folder for a list of models.", "Set HOME or XDG_DATA_HOME.")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.with_name(f".{self.file.name}.lock").open("a", encoding="utf-8") as lock:
                take_lock(lock, waits=True)  # ends with the file's closing, or with the program
                models = self._read()
                yield models
                text = json.dumps({"models": [asdict(model) for model in models.values()]}, indent=1)
                write_atomic(self.file, f"{text}\n".encode())
        except OSError as error:
            raise InputError(
                f"{self.file} cannot be written ({error.strerror}).", "Check the rights of its folder."
            ) from error

    def _read(self) -> dict[str, AddedModel]:
        if self.file is None or not self.file.is_file():
            return {}
        try:
            content = cast(list[dict[str, Any]], read_json(self.file)["models"])
            for entry in content:
                entry["parts"] = {name: AddedComponent(**item) for name, item in entry["parts"].items()}
            models = [AddedModel(**entry) for entry in content]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.file} is no list of added models ({first_line(error)}).",
                "Correct the file, or remove it and add the models again.",
                setting="model",
            ) from error
        return {model.name: model for model in models}


ADDED_MODELS = AddedModels()

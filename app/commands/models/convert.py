"""The verb `models convert`, which writes a copy of a model's transformer in another type."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.commands.arguments import Parser
from app.commands.models.add import base_key, default_base
from app.commands.models.downloading import Progress
from app.jobs.stdio import complain
from app.starting import EXIT_CANCELLED
from diffusers_helper.errors import InputError, LongtakeError, first_line
from diffusers_helper.files import given_path
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.models.added import ADDED_MODELS, AddedModel, AddedPart, name_for
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.hub_cache import part_folder
from diffusers_helper.models.installed import origin_at
from diffusers_helper.models.registry import ModelInfo, PartSource, find_model, model_names
from diffusers_helper.request import AUTO, WEIGHT_TYPES
from diffusers_helper.weights.folders import is_complete, weight_files
from diffusers_helper.weights.inspection import weights_at
from diffusers_helper.weights.safetensors_file import Origin, files_of_origin

_PART = "transformer"
_TYPES = [name for name in WEIGHT_TYPES if name not in (AUTO, "default")]


def add_convert_arguments(parser: Parser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument(
        "model", metavar="NAME|PATH",
        help=f"{', '.join(model_names())}, the folder of a model, or a {_PART}: a file, or its folder",
    )  # fmt: skip
    parser.add_argument(
        "--weight-dtype", required=True, choices=_TYPES, metavar="TYPE",
        help=f"the type of the weights in the copy: {', '.join(_TYPES)}",
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="FOLDER",
        help="the folder for the copy (default: one in the user's data folder, beside models.json)",
    )  # fmt: skip
    parser.add_argument(
        "--base", metavar="MODEL",
        help="for a file, the model that has all other parts (default: as in models add)",
    )  # fmt: skip


def convert(arguments: argparse.Namespace) -> tuple[str, Path, bool]:
    """Write the copy that the arguments ask for, unless it is there, and put its model on the list.

    Returns:
        The name of the model with the copy, the folder of the copy, and whether it was written now.

    Raises:
        InputError: If the model cannot be converted, or its copy's name or folder is in use.
        LongtakeError: If the copy cannot be written.
        SystemExit: If Ctrl-C has ended it.
    """
    info, base, own = _source(arguments)
    name, source = f"{info.name}-{arguments.weight_dtype}", info.parts[_PART]
    place = part_folder(source)
    if not is_complete(place):
        absence = absence_of(info)
        raise NotHere(absence) if absence else InputError(f"{place} is incomplete.", setting="model")
    folder = _folder(arguments, name)
    wanted = Origin(info.name, files_of_origin(weight_files(place)), arguments.weight_dtype, "", "")
    known = ADDED_MODELS.find(name)
    if known is not None:
        folder = Path(known.parts[_PART].path) if _PART in known.parts else folder
    is_here = wanted.is_same(origin_at(folder))
    if known is not None and not (known.copy and is_here):
        raise InputError(
            f"There is already a model {name}, which is not made from these files.",
            f"Remove it with models remove {name}, and convert again.",
            setting="model",
        )
    if not is_here:
        _write(info, place, folder, name, arguments)
    if known is None:
        title = f"{info.title}, {arguments.weight_dtype}"
        parts = {**own, _PART: AddedPart(str(folder))}
        ADDED_MODELS.add(AddedModel(name, title, base, parts, str(folder)))
    return name, folder, not is_here


def _source(arguments: argparse.Namespace) -> tuple[ModelInfo, str, Mapping[str, AddedPart]]:
    given: str = arguments.model
    path = given_path(given, "model")
    if given in model_names() or (path / _PART).is_dir():
        info = find_model(given, allow_folder=True)
        added = ADDED_MODELS.find(given)
        if added is not None:
            return info, added.base, added.parts
        return replace(info, name=name_for(info.name)), base_key(info), {}
    if not path.exists():
        find_model(given, allow_folder=True)  # explains what is expected
    base = find_model(arguments.base or default_base({_PART: path}), allow_folder=True)
    # These libraries take seconds to import.
    from diffusers_helper.loading.copying import find_part_of_own

    with limited_memory(mapped=weight_files(weights_at(path))):
        found = find_part_of_own(_PART, path, base)
    part = {_PART: PartSource(location=found.path, config=found.config)}
    stem = path.absolute().name.removesuffix(path.suffix if path.is_file() else "")
    info = replace(base, name=name_for(stem), title=stem, parts=base.parts | part, folder=None)
    return info, base_key(base), {}


def _folder(arguments: argparse.Namespace, name: str) -> Path:
    if arguments.output is not None:
        return given_path(arguments.output, "output").absolute()
    folder = ADDED_MODELS.copy_folder(name)
    if folder is None:
        raise InputError("There is no folder for the copy.", "Set HOME or XDG_DATA_HOME, or give --output.")
    return folder


def _write(info: ModelInfo, place: Path, folder: Path, name: str, arguments: argparse.Namespace) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists, and is not empty.", "Remove it, or give another --output.")
    from diffusers_helper.loading.copying import copy_weights

    progress = Progress(name, "converting", as_json=arguments.json)
    try:
        copy_weights(
            _PART, place, info.parts[_PART].config, folder,
            model=info.name, weight_dtype=arguments.weight_dtype, on_bytes=progress.show,
        )  # fmt: skip
    except KeyboardInterrupt:
        progress.end()
        complain("Interrupted. Nothing of the copy was kept.")
        raise SystemExit(EXIT_CANCELLED) from None
    except InputError:
        raise
    except OSError as error:
        raise LongtakeError(
            f"{folder} cannot be written ({error.strerror or first_line(error)}).",
            "Check the disk and the rights of the folder, or give another one with --output.",
        ) from error
    except ValueError as error:
        raise LongtakeError(f"{place} cannot be read ({first_line(error)}).", "Use another file.") from error
    finally:
        progress.end()

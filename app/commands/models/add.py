"""The verbs `models add` and `models convert`, which make models of a user's own files known by a name.

The second writes a copy of a model's transformer in another type.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.terminal import progress
from diffusers_helper.errors import InputError, LongtakeError, first_line
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.known import FAMILIES, models_by_part
from diffusers_helper.files import given_path
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.models.added import ADDED_MODELS, AddedModel, AddedPart, check_new_name, name_for
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.installed import origin_at
from diffusers_helper.models.registry import ModelInfo, built_in_names, find_model, model_names
from diffusers_helper.request import AUTO, WEIGHT_TYPES
from diffusers_helper.weights.inspection import inspect_checkpoint, weights_at
from diffusers_helper.weights.reading import is_complete, weight_files
from diffusers_helper.weights.safetensors_file import Origin, files_of_origin

if TYPE_CHECKING:
    from diffusers_helper.loading.copying import FoundPart


def add_model_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the arguments of the verb."""
    parser.set_defaults(named={"model": "--base"})
    parser.add_argument("model", metavar="NAME", help="the new name, of small letters, digits and . _ -")
    parser.add_argument(
        "--base", metavar="MODEL",
        help="the model, or folder of one, that has all other parts (default: the published one that fits "
        "the content and the name of the file)",
    )  # fmt: skip
    for part in models_by_part():
        parser.add_argument(
            f"--{part.replace('_', '-')}", metavar="PATH",
            help=f"the {part.replace('_', ' ')}: a single file, or a folder in diffusers' layout",
        )  # fmt: skip
    parser.add_argument("--title", metavar="TEXT", default="", help="the name to display (default: NAME)")


def take_model(arguments: argparse.Namespace) -> tuple[ModelInfo, dict[str, FoundPart]]:
    """Check the parts of a new model, put it on the list, and return it with what was found.

    Raises:
        InputError: If the name or a part cannot be used. The list is as before then.
    """
    name: str = arguments.model
    check_new_name(name, built_in_names())
    ADDED_MODELS.check_free(name)
    paths = {part: getattr(arguments, part) for part in models_by_part()}
    given = {part: given_path(path, part) for part, path in paths.items() if path is not None}
    if arguments.base is None and not given:
        raise InputError(
            "A model of your own needs at least one part, or a --base.", "Add --transformer PATH."
        )
    for part, path in given.items():
        if not path.exists():
            raise InputError(f"There is no {path}.", f"Give the path of the {part}.", setting="model")
    base = arguments.base or default_base(given)
    info = find_model(base, allow_folder=True)
    if info.name == name:
        raise InputError(f"Model {name} cannot be its own base.", "Choose another --base.", setting="model")
    # These libraries take seconds to import.
    from diffusers_helper.loading.copying import check_parts, find_part_of_own

    with limited_memory():
        parts = {part: find_part_of_own(part, path, info) for part, path in given.items()}
        check_parts(name, parts, info)
    own = {part: found.part for part, found in parts.items()}
    ADDED_MODELS.add(AddedModel(name, arguments.title or name, base_key(info), own))
    return find_model(name), parts


def base_key(base: ModelInfo) -> str:
    """Return the text by which the list of added models finds a base: its name or its folder."""
    return base.name if base.folder is None or base.name in built_in_names() else str(base.folder)


def default_base(given: Mapping[str, Path]) -> str:
    """Return the name of the published model that has the other parts, by the content and name of a file."""
    part = "transformer" if "transformer" in given else next(iter(given), "")
    try:
        with limited_memory():
            found = inspect_checkpoint(weights_at(given[part])) if part else None
    except OSError:
        found = None
    model, variant = (found.model, found.variant) if found else ("", "")
    fitting = (one for one in FAMILIES.values() if part in one.networks and one.networks[part].model == model)
    published = next(fitting, FRAMEPACK).published
    return next((one.name for one in published if one.variant == variant), published[0].name)


_PART = "transformer"
_TYPES = [name for name in WEIGHT_TYPES if name not in (AUTO, "default")]


def add_convert_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the arguments of the verb."""
    parser.set_defaults(named={"model": "MODEL"})
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
    place = source.folder
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

    with limited_memory():
        found = find_part_of_own(_PART, path, base).part
    stem = path.absolute().name.removesuffix(path.suffix if path.is_file() else "")
    info = replace(base.with_own({_PART: found}), name=name_for(stem), title=stem)
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

    kept = "Nothing of the copy was kept."
    try:
        with progress(name, "converting", kept, as_json=arguments.json) as show:
            copy_weights(
                _PART, place, info.parts[_PART].config, folder,
                model=info.name, weight_dtype=arguments.weight_dtype, on_bytes=show,
            )  # fmt: skip
    except InputError:
        raise
    except OSError as error:
        raise LongtakeError(
            f"{folder} cannot be written ({error.strerror or first_line(error)}).",
            "Check the disk and the rights of the folder, or give another one with --output.",
        ) from error
    except ValueError as error:
        raise LongtakeError(f"{place} cannot be read ({first_line(error)}).", "Use another file.") from error

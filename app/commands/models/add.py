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
from diffusers_helper.families.registry import FAMILIES, models_by_component
from diffusers_helper.files import expanded_path
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.models.added import ADDED_MODELS, AddedComponent, AddedModel, check_new_name, name_for
from diffusers_helper.models.downloads import NotHere, absence_of
from diffusers_helper.models.installed import origin_at
from diffusers_helper.models.registry import ModelInfo, built_in_names, find_model, model_names
from diffusers_helper.request import AUTO, WEIGHT_TYPES
from diffusers_helper.weights.inspection import inspect_checkpoint, weights_at
from diffusers_helper.weights.reading import is_complete, weight_files
from diffusers_helper.weights.safetensors_file import Origin, files_of_origin

if TYPE_CHECKING:
    from diffusers_helper.loading.copying import OwnComponent


def add_model_arguments(parser: argparse._ActionsContainer) -> None:
    parser.set_defaults(named={"model": "--base"})
    parser.add_argument("model", metavar="NAME", help="the new name, of small letters, digits and . _ -")
    parser.add_argument(
        "--base", metavar="MODEL",
        help="the model, or folder of one, that has all other parts (default: the published one that fits "
        "the content and the name of the file)",
    )  # fmt: skip
    for component in models_by_component():
        parser.add_argument(
            f"--{component.replace('_', '-')}", metavar="PATH",
            help=f"the {component.replace('_', ' ')}: a single file, or a folder in diffusers' layout",
        )  # fmt: skip
    parser.add_argument("--title", metavar="TEXT", default="", help="the name to display (default: NAME)")


def add_model(arguments: argparse.Namespace) -> tuple[ModelInfo, dict[str, OwnComponent]]:
    name: str = arguments.model
    check_new_name(name, built_in_names())
    ADDED_MODELS.check_free(name)
    paths = {
        component: expanded_path(getattr(arguments, component), component)
        for component in models_by_component()
        if getattr(arguments, component) is not None
    }
    if arguments.base is None and not paths:
        raise InputError(
            "A model of your own needs at least one part, or a --base.", "Add --transformer PATH."
        )
    for component, path in paths.items():
        if not path.exists():
            raise InputError(f"There is no {path}.", f"Give the path of the {component}.", setting="model")
    base = arguments.base or default_base(paths)
    info = find_model(base, allow_folder=True)
    if info.name == name:
        raise InputError(f"Model {name} cannot be its own base.", "Choose another --base.", setting="model")
    # These libraries take seconds to import.
    from diffusers_helper.loading.copying import check_components, find_own_component

    with limited_memory():
        components = {key: find_own_component(key, path, info) for key, path in paths.items()}
        check_components(name, components, info)
    added = {key: own_component.component for key, own_component in components.items()}
    ADDED_MODELS.add(AddedModel(name, arguments.title or name, base_key(info), added))
    return find_model(name), components


def base_key(base: ModelInfo) -> str:
    return base.name if base.folder is None or base.name in built_in_names() else str(base.folder)


def default_base(part_paths: Mapping[str, Path]) -> str:
    component = "transformer" if "transformer" in part_paths else next(iter(part_paths), "")
    try:
        with limited_memory():
            inspection = inspect_checkpoint(weights_at(part_paths[component])) if component else None
    except OSError:
        inspection = None
    model, variant = (inspection.model, inspection.variant) if inspection else ("", "")
    networks = ((family, family.networks.get(component)) for family in FAMILIES.values())
    families = (family for family, network in networks if network and network.model == model)
    published = next(families, FRAMEPACK).published
    return next((family.name for family in published if family.variant == variant), published[0].name)


_PART = "transformer"
_TYPES = [name for name in WEIGHT_TYPES if name not in (AUTO, "default")]


def add_convert_arguments(parser: argparse._ActionsContainer) -> None:
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
    """
    info, base, parts_of_base = _source(arguments)
    name = f"{info.name}-{arguments.weight_dtype}"
    source = info.components[_PART]
    source_folder = source.folder
    if not is_complete(source_folder):
        absence = absence_of(info)
        raise NotHere(absence) if absence else InputError(f"{source_folder} is incomplete.", setting="model")
    folder = _folder(arguments, name)
    files = files_of_origin(weight_files(source_folder))
    expected_origin = Origin(info.name, files, arguments.weight_dtype, "", "")
    added = ADDED_MODELS.find(name)
    if added is not None:
        folder = Path(added.parts[_PART].path) if _PART in added.parts else folder
    is_complete_copy = expected_origin.is_same(origin_at(folder))
    if added is not None and not (added.copy and is_complete_copy):
        raise InputError(
            f"There is already a model {name}, which is not made from these files.",
            f"Remove it with models remove {name}, and convert again.",
            setting="model",
        )
    if not is_complete_copy:
        _write(info, source_folder, folder, name, arguments)
    if added is None:
        title = f"{info.title}, {arguments.weight_dtype}"
        parts = {**parts_of_base, _PART: AddedComponent(str(folder))}
        ADDED_MODELS.add(AddedModel(name, title, base, parts, str(folder)))
    return name, folder, not is_complete_copy


def _source(arguments: argparse.Namespace) -> tuple[ModelInfo, str, Mapping[str, AddedComponent]]:
    model: str = arguments.model
    path = expanded_path(model, "model")
    if model in model_names() or (path / _PART).is_dir():
        info = find_model(model, allow_folder=True)
        added = ADDED_MODELS.find(model)
        if added is not None:
            return info, added.base, added.parts
        return replace(info, name=name_for(info.name)), base_key(info), {}
    if not path.exists():
        find_model(model, allow_folder=True)  # explains what is expected
    base = find_model(arguments.base or default_base({_PART: path}), allow_folder=True)
    # These libraries take seconds to import.
    from diffusers_helper.loading.copying import find_own_component

    with limited_memory():
        component = find_own_component(_PART, path, base).component
    stem = path.absolute().name.removesuffix(path.suffix if path.is_file() else "")
    info = replace(base.with_components({_PART: component}), name=name_for(stem), title=stem)
    return info, base_key(base), {}


def _folder(arguments: argparse.Namespace, name: str) -> Path:
    if arguments.output is not None:
        return expanded_path(arguments.output, "output").absolute()
    folder = ADDED_MODELS.copy_folder(name)
    if folder is None:
        raise InputError("There is no folder for the copy.", "Set HOME or XDG_DATA_HOME, or give --output.")
    return folder


def _write(info: ModelInfo, source: Path, folder: Path, name: str, arguments: argparse.Namespace) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists, and is not empty.", "Remove it, or give another --output.")
    from diffusers_helper.loading.copying import copy_weights

    kept_sentence = "Nothing of the copy was kept."
    try:
        with progress(name, "converting", kept_sentence, as_json=arguments.json) as show:
            copy_weights(
                _PART, source, info.components[_PART].config, folder,
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
        raise LongtakeError(f"{source} cannot be read ({first_line(error)}).", "Use another file.") from error

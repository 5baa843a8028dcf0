"""The verb `models add`, which makes a model of a user's own files known by a name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.arguments import Parser
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.families.known import FAMILIES, models_by_part
from diffusers_helper.files import given_path
from diffusers_helper.machine.limits import limited_memory
from diffusers_helper.models.added import ADDED_MODELS, AddedModel, check_new_name
from diffusers_helper.models.registry import ModelInfo, built_in_names, find_model
from diffusers_helper.weights.folders import weight_files
from diffusers_helper.weights.inspection import inspect_checkpoint, weights_at

if TYPE_CHECKING:
    from diffusers_helper.loading.copying import FoundPart


def add_model_arguments(parser: Parser) -> None:
    """Add the arguments of the verb."""
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

    files = [file for path in given.values() for file in weight_files(weights_at(path))]
    with limited_memory(mapped=files):
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

"""The command `inspect`: what the header of a file with weights tells, without loading it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from app.commands.arguments import EXIT_FAILED
from app.jobs.stdio import say
from diffusers_helper.errors import InputError
from diffusers_helper.files import given_path
from diffusers_helper.models.inspect import Inspection, inspect_checkpoint
from diffusers_helper.units import count_text, gb_text

if TYPE_CHECKING:
    from app.commands.arguments import Parser


def add_inspect(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "inspect",
        help="tell what is in a file with weights",
        description="Read the header of a file with weights: format, tensors, types, layout and model.",
        epilog="exit codes: 0 it can be loaded, 1 it is damaged, 2 the command cannot be used.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=print_inspection, verbose=False)
    parser.add_argument("path", metavar="PATH", help="the file")
    parser.add_argument("--json", action="store_true", help="print the facts as one JSON object")


def print_inspection(arguments: argparse.Namespace) -> int:
    """Print the facts about a file.

    Raises:
        InputError: If the file cannot be read.
    """
    path = given_path(arguments.path, "path")
    try:
        facts = inspect_checkpoint(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}).", "Give the path of a file with weights."
        ) from error
    say(facts.to_json() + "\n" if arguments.json else _words(facts))
    return EXIT_FAILED if facts.problems else 0


def _words(facts: Inspection) -> str:
    size = f"{count_text(facts.tensors, 'tensor')}, {gb_text(facts.tensor_bytes)} GB"
    shares = ", ".join(f"{share:.1%} {name}" for name, share in facts.shares.items())
    lines = [
        f"{facts.path}: {facts.format}, {gb_text(facts.file_bytes)} GB",
        f"model: {facts.model or 'not known'}, with the names of {_STYLES[facts.keys]}",
        f"weights: {size}; {shares}" if facts.tensors else "weights: not listed in front",
        f"quantised: {facts.quantised or 'no'}",
        *facts.hints,
        *facts.problems,
    ]
    return "\n".join(lines) + "\n"


_STYLES = {
    "checkpoint": "a whole checkpoint",
    "diffusers": "diffusers",
    "original": "its authors",
    "unknown": "an unknown layout",
}

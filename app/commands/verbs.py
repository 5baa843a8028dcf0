"""Commands that consist of verbs, such as `jobs` and `models`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.commands.arguments import Parser

Run = TypeVar("Run")


@dataclass(frozen=True, slots=True)
class Verb(Generic[Run]):
    """One thing that a command can do.

    Attributes:
        add: Adds the verb's arguments to a parser.
        run: Executes the verb and returns the exit code.
    """

    name: str
    help: str
    add: Callable[[Parser], object]
    run: Run


def add_verbs(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    *,
    summary: str,
    description: str,
    exit_codes: str,
    verbs: Iterable[Verb[Run]],
) -> Iterator[tuple[Verb[Run], Parser]]:
    """Add a command, and yield each of its verbs with its parser, which lacks only the common arguments."""
    parser = commands.add_parser(name, help=summary, description=description, allow_abbrev=False)
    parsers = parser.add_subparsers(metavar="verb", required=True, parser_class=Parser)
    for verb in verbs:
        one = parsers.add_parser(
            verb.name,
            help=verb.help,
            description=f"{verb.help[:1].upper()}{verb.help[1:]}.",
            epilog=exit_codes,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb.add(one)
        yield verb, one

"""What the programs' arguments have in common."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import NoReturn

from app.miopen import FIND_MODES, VARIABLE
from diffusers_helper.planning.profiles import detect, engine_environment, profile_for

_log = logging.getLogger(__name__)

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_CANCELLED = 1, 2, 130


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{message[:1].upper()}{message[1:]}. See: {self.prog} --help\n")
        raise SystemExit(EXIT_BAD_INPUT)


def add_find_mode(parser: argparse._ActionsContainer) -> None:
    """Adds the argument."""
    parser.add_argument(
        "--miopen-find-mode",
        type=str.upper,
        choices=tuple(FIND_MODES),
        metavar="|".join(FIND_MODES),
        help="how MIOpen picks a kernel for a new shape: FAST starts at once, NORMAL searches long once and "
        f"may be faster afterwards (default: {VARIABLE}, or by the card; doctor says which and why)",
    )


def given_find_mode(arguments: argparse.Namespace) -> dict[str, str]:
    """What the argument sets in the environment; nothing if it was not given."""
    mode: str | None = arguments.miopen_find_mode
    return {} if mode is None else {VARIABLE: mode}


def take_find_mode(arguments: argparse.Namespace) -> None:
    """Puts the argument into this process's environment, which an engine started from here gets too."""
    given = given_find_mode(arguments)
    if given and detect(os.environ).kind != "rocm":
        _log.warning("--miopen-find-mode has no effect here: MIOpen runs on AMD cards only")
    os.environ.update(given)


def take_engine_environment() -> None:
    """Gives this process what an engine's environment has, for commands that import torch themselves.

    Has to come before torch is imported, which reads its environment once.
    """
    profile = profile_for(detect(os.environ), os.environ)
    os.environ.update(engine_environment(profile, os.environ))

"""MIOpen's find mode, by which it picks a kernel for a new shape: the argument, and what each mode costs.

The argument takes the place of MIOPEN_FIND_MODE in the environment, and that of the profile's choice. The
modes are as MIOpen's documentation has them; what they take on a card was not measured here.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping

from diffusers_helper.profiles import detect, engine_environment, profile_for

_log = logging.getLogger(__name__)

VARIABLE = "MIOPEN_FIND_MODE"
FIND_MODES = {
    "NORMAL": "times all kernels for each new shape: long silence at first, the fastest kernel afterwards",
    "FAST": "takes what MIOpen's database or else its rule of thumb names: starts at once, may stay slower",
    "HYBRID": "as FAST for shapes in MIOpen's database, as NORMAL for all others",
    "DYNAMIC_HYBRID": "as HYBRID, but leaves out kernels that would be compiled for the one shape",
}
# The same modes as numbers, and two more that the documentation has.
_NUMBERS = {"1": "NORMAL", "2": "FAST", "3": "HYBRID", "5": "DYNAMIC_HYBRID"}
_OTHERS = ("TRUST_VERIFY", "TRUST_VERIFY_FULL", "6", "7")
# Settings of MIOPEN_FIND_ENFORCE that are unsafe with all modes but NORMAL.
_UNSAFE = ("2", "4", "5", "DB_UPDATE", "SEARCH_DB_UPDATE", "DB_CLEAN")


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


def name_of(value: str) -> str:
    """The mode that a value of the variable stands for; "" for one that MIOpen's documentation lacks."""
    text = value.strip().upper()
    return text if text in FIND_MODES or text in _OTHERS else _NUMBERS.get(text, "")


def find_mode_findings(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What there is to say about the find mode of an engine: sentences, each with a remedy or ""."""
    value = environ.get(VARIABLE, "")
    mode = name_of(value)
    found: list[tuple[str, str]] = []
    if mode in FIND_MODES:
        found.append((f"find mode {mode}: {FIND_MODES[mode]}", ""))
    elif value and not mode:
        expected = f"Expected one of {', '.join(FIND_MODES)}; set it with --miopen-find-mode."
        found.append((f"{VARIABLE} is {value[:60]!r}, which MIOpen's documentation does not know", expected))
    enforced = environ.get("MIOPEN_FIND_ENFORCE", "").strip().upper()
    if enforced in _UNSAFE and mode not in ("", "NORMAL"):
        found.append((f"MIOPEN_FIND_ENFORCE={enforced} is not safe with find mode {mode}", "Leave it out."))
    return found

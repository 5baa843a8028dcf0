"""The command line. Each command is a parser and a function from its arguments to an exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

from app.commands.arguments import EXIT_BAD_INPUT, EXIT_CANCELLED, EXIT_FAILED, Parser, add_find_mode
from app.commands.doctor import run_doctor
from app.commands.generate import make_video
from app.commands.plan import print_plan
from app.commands.tune import add_tune
from app.jobs.stdio import open_closed_streams
from diffusers_helper import __version__
from diffusers_helper.errors import InputError, LongtakeError
from diffusers_helper.models.registry import model_names
from diffusers_helper.packing import MODES
from diffusers_helper.planning.profiles import FAMILIES
from diffusers_helper.request import MAX_RESOLUTION, MIN_RESOLUTION, RANGES, SAMPLERS, GenerationRequest

_DEFAULTS = {field.name: field.default for field in fields(GenerationRequest)}
_EXIT_CODES = """\
exit codes: 0 done, 1 failed, 2 something in the command cannot be used, 130 cancelled.
Ctrl-C cancels within one step and keeps the video so far; a second Ctrl-C quits at once.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments after the program's name; the process's own by default.

    Returns: the process's exit code.
    """
    open_closed_streams()
    logging.raiseExceptions = False  # a closed stderr is no reason for a traceback
    try:
        arguments = _parser().parse_args(argv)
        level = logging.INFO if arguments.verbose else logging.WARNING
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=level)
        return arguments.run(arguments)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_INPUT
    except LongtakeError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    except BrokenPipeError:
        # Whoever read our output has left. What is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_CANCELLED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m app", description="Longtake: FramePack video on Radeon cards, that finishes."
    )
    parser.add_argument("--version", action="version", version=f"Longtake {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=Parser)
    _add_generate(commands)
    add_tune(commands)
    _add_plan(commands)
    _add_doctor(commands)
    return parser


def _add_generate(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "generate",
        help="make a video from a picture and a sentence",
        description="Make a video that starts with a picture and does what a sentence says.\n"
        "The last line on standard output is the path of the video.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=make_video)
    _add_content(parser.add_argument_group("what to make"))
    _add_quality(parser.add_argument_group("how to make it"))
    _add_place(parser.add_argument_group("where and with what"))


def _add_plan(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "plan",
        help="what a video would take of the device's memory",
        description="What stays on the device and what is streamed, with the predicted peak of each stage.\n"
        "Nothing is loaded: neither a GPU nor the model's files need to be there.",
        epilog="exit codes: 0 it fits, 1 failed, 2 it does not fit or the command cannot be used.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=print_plan, verbose=False)
    parser.add_argument("--image", metavar="FILE", help="picture, for its shape (default: the largest shape)")
    parser.add_argument("--prompt", metavar="TEXT", help="what should happen, for its length")
    _add_number(parser, "seconds", "length of the video")
    _add_quality(parser.add_argument_group("how to make it"))
    _add_memory(parser.add_argument_group("with what"))
    parser.add_argument(
        "--card",
        metavar="FAMILY:GB",
        help=f"plan for another machine, such as gfx1100:24; families: {', '.join(FAMILIES)}",
    )
    parser.add_argument("--json", action="store_true", help="the plan as one JSON object")


def _add_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what this machine has, and what stands in a job's way",
        description="Looks at card, torch, memory, disk and environment, and tests which attention runs.",
        epilog="exit codes: 0 a job would work, 1 it would fail, 2 the command cannot be used.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run_doctor, verbose=False)
    parser.add_argument(
        "--model", default=_DEFAULTS["model"], metavar="NAME|DIR", help="model that the job would use"
    )
    parser.add_argument("--out", default="outputs", metavar="DIR", help="where its files would go")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument(
        "--clear-miopen-cache",
        action="store_true",
        help="instead remove what MIOpen has learned and compiled, and say how much that was",
    )
    add_find_mode(parser)
    parser.add_argument(
        "--forget-smaller-plans",
        action="store_true",
        help="instead forget that memory ran out before, so that plans take what the cap allows",
    )


def _add_content(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--image", required=True, metavar="FILE", help="picture to start from")
    group.add_argument("--prompt", required=True, metavar="TEXT", help="what should happen")
    group.add_argument("--negative", metavar="TEXT", help="what should not; used only with --cfg above 1")
    _add_number(group, "seconds", "length of the video, rounded to whole sections of 1.2 s")
    _add_number(group, "seed", "source of all randomness: the same command gives the same bytes")


def _add_quality(group: argparse._ArgumentGroup) -> None:
    _add_number(group, "steps", "denoising steps per section")
    group.add_argument(
        "--mode",
        metavar="|".join(MODES),
        help="which end is made first: inverted the last, forward the first (default: the model's own)",
    )
    group.add_argument(
        "--resolution",
        type=_number,
        metavar="PIXELS",
        help=f"side of a square video of the same area; {MIN_RESOLUTION} to {MAX_RESOLUTION} "
        "(default: the model's own)",
    )
    _add_number(group, "guidance", "distilled guidance: how closely to follow the prompt")
    _add_number(group, "cfg", "classifier-free guidance; above 1 each step takes twice as long")
    _add_number(group, "cfg_rescale", "keeps strong --cfg from burning the colours")
    _add_number(group, "crf", "compression of the MP4: lower is better and larger")
    group.add_argument(
        "--sampler", metavar="|".join(SAMPLERS), help=f"solver (default: {_DEFAULTS['sampler']})"
    )


def _add_place(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out", default="outputs", metavar="DIR", help="the job's folder is made in it (default: outputs)"
    )
    _add_memory(group)
    group.add_argument(
        "--json", action="store_true", help="standard output is one JSON event a line and nothing else"
    )
    group.add_argument("--verbose", action="store_true", help="log to standard error what is done")
    group.add_argument(
        "--in-process", action="store_true", help="without the engine process, for looking for faults"
    )
    add_find_mode(group)


def _add_memory(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        default=_DEFAULTS["model"],
        metavar="NAME|DIR",
        help=f"{', '.join(model_names())}, or a folder with a model's parts (default: {_DEFAULTS['model']})",
    )
    group.add_argument(
        "--preserved-gb",
        type=_number,
        metavar="GB",
        help="GPU memory that weights leave free; "
        f"{RANGES['preserved_gb'].low:g} to {RANGES['preserved_gb'].high:g} (default: by the card's size)",
    )
    group.add_argument(
        "--vram-cap-gb",
        type=_number,
        metavar="GB",
        help="most GPU memory that the job may take, 1 GB = 1024^3 bytes; "
        f"{RANGES['vram_cap_gb'].low:g} to {RANGES['vram_cap_gb'].high:g} (default: by the card's size)",
    )
    group.add_argument(
        "--vae-tile",
        type=_tile,
        metavar="auto|PX",
        help="side of the pieces that pictures are encoded and decoded in, a multiple of 32 from "
        f"{RANGES['vae_tile'].low:g} to {RANGES['vae_tile'].high:g}; other pieces give slightly other "
        "pixels (default: auto, smaller only where the cap demands it)",
    )


def _add_number(group: argparse._ActionsContainer, name: str, text: str) -> None:
    low, high = f"{RANGES[name].low:g}", f"{RANGES[name].high:g}" if name != "seed" else "2^63 - 1"
    group.add_argument(
        f"--{name.replace('_', '-')}",
        type=_number,
        metavar="N",
        help=f"{text}; {low} to {high} (default: {_DEFAULTS[name]:g})",
    )


def _tile(text: str) -> int | float | str | None:
    return None if text == "auto" else _number(text)


def _number(text: str) -> int | float | str:
    """What is no number stays text, which the request refuses by name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

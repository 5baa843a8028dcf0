"""The command line: a parser for each command, and a function from its arguments to an exit code."""

import argparse
import sys
from collections.abc import Sequence

from app.commands.arguments import (
    Commands,
    Parser,
    add_command,
    add_find_mode,
    add_outputs,
    add_request,
    add_setting,
    add_settings,
    argument,
    run_parsed,
    switch,
)  # fmt: skip
from app.commands.bench import add_bench
from app.commands.comfyui import add_comfyui
from app.commands.doctor import run_doctor
from app.commands.export import add_export
from app.commands.finish import add_finish
from app.commands.generate import make_video
from app.commands.inspect import add_inspect
from app.commands.jobs import add_jobs
from app.commands.join import add_join
from app.commands.models.command import add_models
from app.commands.origin import ORIGINS
from app.commands.plan import print_plan
from app.commands.replay import add_replay
from app.commands.tune import add_tune
from diffusers_helper import __version__
from diffusers_helper.planning.profiles import FAMILIES

_PAGE = "page"
_EXIT_CODES = """\
exit codes: 0 done, 1 failed, 2 invalid command or input, 130 cancelled,
129 or 143 interrupted by a signal, 141 by a closed pipe (--resume continues the job).
Ctrl-C cancels within one step and keeps the video so far; a second Ctrl-C does not wait for the step.
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == [_PAGE]:
        from app.web.server import main as serve  # importing it takes a second

        return serve(arguments[1:], f"longtake {_PAGE}")
    return run_parsed(_parser, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="longtake",
        description="Longtake: FramePack video that finishes, on Radeon cards.",
    )
    parser.add_argument("--version", action="version", version=f"Longtake {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=Parser)
    # This is only its line in the help: its own parser is in `app.web.server`.
    commands.add_parser(_PAGE, help="serve the page", add_help=False)
    _add_generate(commands)
    add_finish(commands)
    add_jobs(commands)
    add_export(commands)
    add_tune(commands)
    add_bench(commands)
    _add_plan(commands)
    _add_doctor(commands)
    add_models(commands)
    add_inspect(commands)
    add_replay(commands)
    add_comfyui(commands)
    add_join(commands)
    return parser


def _add_generate(commands: Commands) -> None:
    parser = add_command(
        commands, "generate", make_video, add_request,
        help="make a video from a picture and a sentence",
        description="Make a video that starts with a picture and does what a sentence says.\n"
        "The last line on standard output is the path of the video.",
        epilog=_EXIT_CODES,
    )  # fmt: skip
    parser.set_defaults(model=None)  # recipes and branches have a model of their own
    group = parser.add_argument_group("source and output")
    for add in (
        *ORIGINS, add_outputs,
        switch("--json", "print only JSON events, one per line"),
        switch("--verbose", "log each action to standard error"),
        switch("--in-process", "run without the engine process, for debugging"),
        add_find_mode,
    ):  # fmt: skip
        add(group)


def _add_plan(commands: Commands) -> None:
    add_command(
        commands, "plan", print_plan,
        lambda parser: add_settings(parser, excluded=("seed",)),
        argument(
            "--card", metavar="FAMILY:GB",
            help=f"plan for another machine, such as gfx1100:24; families: {', '.join(FAMILIES)}",
        ),
        switch(
            "--recommended",
            "choose resolution, weight type and preserved memory for the card, and plan with them",
        ),
        switch("--json", "print the plan as one JSON object"),
        help="show how much of the device's memory a video would need",
        description="Show which weights stay on the device, which are streamed, and the predicted peak of\n"
        "each stage. Nothing is loaded, so neither a GPU nor the model's files are needed.",
        epilog="exit codes: 0 the video fits, 1 failed, 2 the video does not fit or the command is invalid.",
    )  # fmt: skip


def _add_doctor(commands: Commands) -> None:
    add_command(
        commands, "doctor", run_doctor,
        lambda parser: add_setting(parser, "model"),
        add_outputs,
        switch("--json", "print the report as one JSON object"),
        switch(
            "--clear-miopen-cache",
            "only remove MIOpen's tuning results and compiled kernels, and report their size",
        ),
        add_find_mode,
        switch(
            "--forget-smaller-plans",
            "only forget earlier shortages of memory, so plans use all that the cap allows",
        ),
        help="examine this machine, and report what would make a job fail",
        description="Examine card, torch, memory, disk and environment, and test the attention kernel.",
        epilog="exit codes: 0 a job would work, 1 a job would fail, 2 the command is invalid.",
    )  # fmt: skip

"""The command line: the commands, and the modules that are imported when they are asked for."""

import sys
from collections.abc import Collection, Sequence
from importlib import import_module

from app.commands.arguments import Parser, add_language, run_parsed
from diffusers_helper import __version__

_PAGE = "page"
# The line of each command in the help, and what adds its parser. That of the page is in `app.web.server`.
_COMMANDS = {
    _PAGE: ("serve the page", ""),
    "generate": ("make a video from a picture and a sentence", "generate:add_generate"),
    "finish": ("enlarge, smooth, edit or join videos", "finish:add_finish"),
    "jobs": ("list and change the jobs of an outputs folder", "jobs:add_jobs"),
    "export": ("write a video in another format", "export:add_export"),
    "tune": ("find the fastest convolutions for this card", "tune:add_tune"),
    "bench": ("measure this machine, and write a report to send", "bench:add_bench"),
    "plan": ("show how much of the device's memory a video would need", "plan:add_plan"),
    "doctor": ("examine this machine, and report what would make a job fail", "doctor:add_doctor"),
    "models": ("list, add, get, convert, verify and remove models", "models.command:add_models"),
    "inspect": ("show what is in a file or folder with weights", "inspect:add_inspect"),
    "replay": ("run a captured stage of a job again, and compare the results", "replay:add_replay"),
    "install-comfyui-nodes": ("write the ROCm nodes into ComfyUI's folder", "comfyui:add_install"),
    "uninstall-comfyui-nodes": ("remove what install-comfyui-nodes has written", "comfyui:add_uninstall"),
    "join": ("give this machine's cards to the queue of another one, with Ray", "join:add_join"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == [_PAGE]:
        from app.web.server import main as serve  # importing it takes a second

        return serve(arguments[1:], f"longtake {_PAGE}")
    return run_parsed(lambda: command_parser(arguments), arguments)


def command_parser(names: Collection[str] = _COMMANDS) -> Parser:
    """The parser of these commands; of the others, it has the lines in the help alone."""
    parser = Parser(
        prog="longtake",
        description="Longtake: FramePack video that finishes, on Radeon cards.",
    )
    parser.add_argument("--version", action="version", version=f"Longtake {__version__}")
    add_language(parser)
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=Parser)
    for name, (line, place) in _COMMANDS.items():
        module, _, adder = place.partition(":")
        if module and name in names:
            getattr(import_module(f"app.commands.{module}"), adder)(commands)
        else:
            commands.add_parser(name, help=line, add_help=False)
    return parser

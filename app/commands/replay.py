"""The command that runs a captured stage of a job again."""

import argparse
import os

from app.commands.arguments import EXIT_FAILED, Commands, add_command, apply_engine_environment, argument
from app.jobs.stdio import say
from app.machine import this_local
from app.miopen import conv_settings
from diffusers_helper.files import expanded_path


def add_replay(commands: Commands) -> None:
    add_command(
        commands, "replay", replay_stage,
        argument("file", metavar="FILE", help="the JSON file of a capture"),
        description="A job keeps the inputs of a stage that fails in the folder `captures` of its folder;\n"
        "with LONGTAKE_DEBUG=1 in the environment, those and the outputs of all stages. This runs one of\n"
        "them again.",
        epilog="exit codes: 0 the same bits, 1 the results differ or the stage failed, 2 the command cannot\n"
        "be used.",
    )  # fmt: skip


def replay_stage(arguments: argparse.Namespace) -> int:
    file = expanded_path(arguments.file, "file")
    apply_engine_environment()
    from diffusers_helper.miopen_fallback import initialize_miopen_fallback
    from diffusers_helper.replay import replay

    comparison = replay(file, this_local(os.environ), initialize_miopen_fallback(**conv_settings()))
    say(str(comparison))
    return EXIT_FAILED if comparison.difference else 0

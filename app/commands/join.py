"""The command `join`, which gives this machine's cards to the queue of another one."""

import argparse
import os

from app.cluster import ClusterTask, check_cluster, join
from app.commands.arguments import Commands, add_command, argument, switch


def add_join(commands: Commands) -> None:
    add_command(
        commands, "join", _join,
        argument("address", metavar="ADDRESS", help="the cluster, as HOST:PORT; auto for one that runs here"),
        argument("--devices", default="auto", metavar="LIST", help="the cards (default: all)"),
        argument("--name", help="this machine's name in those of its cards (default: its own)"),
        switch("--public", "allow an address outside of private networks"),
        description="Make the videos of another machine's queue on this machine's cards, until Ctrl-C.\n"
        "Whoever reaches the cluster can run programs on this machine: read docs/cluster.md first.",
    )  # fmt: skip


def _join(arguments: argparse.Namespace) -> int:
    check_cluster(arguments.address, os.environ, is_public=arguments.public)
    options = {"machine": arguments.name} if arguments.name else {}
    join(ClusterTask(arguments.address, arguments.public, devices=arguments.devices, **options))
    return 0

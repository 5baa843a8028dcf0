"""The command line of the nodes: `python -m rocm_nodes replay FILE` runs a captured node again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from diffusers_helper.errors import LongtakeError


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit code: 0, 1 if the results differ, or 2 for an error."""
    parser = argparse.ArgumentParser(prog="python -m rocm_nodes")
    commands = parser.add_subparsers(dest="command", required=True)
    replayed = commands.add_parser("replay", help="run a captured node again, and compare the results")
    replayed.add_argument("file", type=Path, help="the JSON file of a capture")
    replayed.add_argument("--comfyui", type=Path, help="the folder of ComfyUI, if it is not on the path")
    replayed.add_argument("--vae", type=Path, help="the file of the VAE that the node had")
    replayed.add_argument("--model", type=Path, help="the file of the diffusion model that the node had")
    given = parser.parse_args(arguments)
    if given.comfyui is not None:
        sys.path.insert(0, str(given.comfyui))
    from rocm_nodes.debugging import replay
    from rocm_nodes.registry import node_classes

    objects = {name: path for name in ("vae", "model") if (path := getattr(given, name)) is not None}
    try:
        text = replay(given.file, objects, node_classes())
    except LongtakeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{text}\n")
    return 0 if text.endswith("bit for bit.") else 1


if __name__ == "__main__":
    sys.exit(main())

"""The command line of the nodes: `python -m rocm_nodes replay FILE` runs a captured node again."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from diffusers_helper.errors import LongtakeError
from diffusers_helper.machine.terminal import one_line


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rocm_nodes")
    commands = parser.add_subparsers(dest="command", required=True)
    replay_parser = commands.add_parser("replay", help="run a captured node again, and compare the results")
    replay_parser.epilog = "What follows -- is passed to ComfyUI, such as -- --cpu --base-directory DIR."
    replay_parser.add_argument("file", type=Path, help="the JSON file of a capture")
    replay_parser.add_argument("--comfyui", type=Path, help="the folder of ComfyUI, if it is not on the path")
    replay_parser.add_argument("--vae", type=Path, help="the file of the VAE that the node had")
    replay_parser.add_argument("--model", type=Path, help="the file of the diffusion model that the node had")
    own_arguments, comfyui_flags = _split_at_dashes(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(own_arguments)
    objects = {name: path for name in ("vae", "model") if (path := getattr(options, name)) is not None}
    try:
        if options.comfyui is not None:
            _prepare(options.comfyui, comfyui_flags)
        from rocm_nodes.debugging import replay
        from rocm_nodes.registry import node_tables

        comparison = replay(options.file, objects, node_tables()[0])
    except LongtakeError as error:
        sys.stderr.write(f"{one_line(str(error))}\n")
        return 2
    except ImportError as error:
        remedy = "Name its folder with --comfyui, and run this command with its Python."
        sys.stderr.write(f"ComfyUI cannot be imported ({error}). {remedy}\n")
        return 2
    sys.stdout.write(f"{one_line(str(comparison))}\n")
    return 1 if comparison.difference else 0


def _split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    index = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:index]), list(arguments[index + 1 :])


def _prepare(folder: Path, flags: list[str]) -> None:
    """Let ComfyUI's modules be imported, which without a GPU needs its flag for the CPU."""
    sys.path.insert(0, str(folder))
    needs_cpu = not torch.cuda.is_available() and "--cpu" not in flags
    sys.argv = [str(folder / "main.py"), *flags, *(["--cpu"] if needs_cpu else [])]
    import comfy.options  # type: ignore[import-not-found]

    comfy.options.enable_args_parsing()


if __name__ == "__main__":
    sys.exit(main())

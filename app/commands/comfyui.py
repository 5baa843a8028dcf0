"""The commands that put the ROCm nodes into a ComfyUI and take them out again."""

import argparse
import json
import re
import shlex
import shutil
from pathlib import Path

from app.commands.arguments import Commands, add_command, argument
from app.commands.pack import INIT_TEXT, NAME, write_pack
from app.jobs.stdio import say
from app.machine import output_of
from diffusers_helper.errors import InputError
from diffusers_helper.files import expanded_path
from diffusers_helper.machine.packages import FRAMEPACK, package_problem

# The versions that the nodes were tested with
OLDEST = (0, 3, 40)
NEWEST_TESTED = (0, 33, 0)
_PATH = argument(
    "path", metavar="PATH",
    help="the folder with custom_nodes: that of main.py, of --base-directory, or of the Desktop app",
)  # fmt: skip
_SECONDS = 60.0
# What ComfyUI's Python is asked to do: print the versions of packages.
_VERSIONS = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


def add_install(commands: Commands) -> None:
    add_command(
        commands, "install-comfyui-nodes", install_nodes, _PATH,
        argument(
            "--python", metavar="FILE",
            help="the Python that runs ComfyUI (default: the one in its folder)",
        ),
        description="Write one folder into ComfyUI's folder custom_nodes, and name the packages that its\n"
        "Python lacks. Nothing else is changed.",
    )  # fmt: skip


def add_uninstall(commands: Commands) -> None:
    add_command(commands, "uninstall-comfyui-nodes", uninstall_nodes, _PATH)


def install_nodes(arguments: argparse.Namespace) -> int:
    root = _root(arguments.path)
    version = _comfyui_version(root)
    if version and version < OLDEST:
        raise InputError(
            f"ComfyUI has version {_version_text(version)}; expected {_version_text(OLDEST)} or newer.",
            "Update it.",
        )
    python = _python(root, arguments.python)
    versions = _package_versions(python) if python else {}
    folder = root / "custom_nodes" / NAME
    _check_is_pack(folder, "this command", "Move it away, or update it with git pull if it is a checkout.")
    write_pack(folder)
    lines = [f"Wrote {folder}. Start ComfyUI again to see the nodes, under ROCm Ninodes."]
    if version > NEWEST_TESTED:
        newest = _version_text(NEWEST_TESTED)
        lines.append(f"ComfyUI has version {_version_text(version)}; the nodes were tested up to {newest}.")
    if not version:
        lines.append(f"ComfyUI's version is not known here; expected {_version_text(OLDEST)} or newer.")
    command = f"-m pip install -r {shlex.quote(str(folder / 'requirements.txt'))}"
    if python is None:
        lines.append(
            f"ComfyUI's Python was not found. The FramePack nodes need {', '.join(FRAMEPACK)}: run it with "
            f"{command}, or name it with --python."
        )
    elif missing := package_problem(versions, FRAMEPACK):
        lines.append(
            f"The FramePack nodes cannot run with ComfyUI's Python yet: {missing}. Install what is missing: "
            f"{shlex.quote(str(python))} {command}"
        )
    say(*lines)
    return 0


def uninstall_nodes(arguments: argparse.Namespace) -> int:
    folder = _root(arguments.path) / "custom_nodes" / NAME
    if not folder.exists():
        raise InputError(f"{folder} does not exist, so there is nothing to remove.")
    _check_is_pack(folder, "install-comfyui-nodes", "Remove it by hand if you do not need it.")
    shutil.rmtree(folder)
    say(f"Removed {folder}.")
    return 0


def _check_is_pack(folder: Path, writer: str, remedy: str) -> None:
    init_file = folder / "__init__.py"
    is_pack = init_file.is_file() and init_file.read_bytes().startswith(INIT_TEXT.partition(b"\n")[0])
    if folder.exists() and (not is_pack or (folder / ".git").exists()):
        raise InputError(f"{folder} was not written by {writer}.", remedy)


def _root(path: str) -> Path:
    folder = expanded_path(path, "path").absolute()
    for root in (folder, folder / "ComfyUI"):
        if (root / "custom_nodes").is_dir():
            return root
    raise InputError(
        f"{folder} has no custom_nodes; expected a folder of ComfyUI.",
        "Give the folder that contains ComfyUI's main.py, or your models and custom_nodes.",
    )


def _comfyui_version(root: Path) -> tuple[int, ...]:
    """Read ComfyUI's version; () in a folder that has only models and nodes."""
    file = root / "comfyui_version.py"
    if not file.is_file():
        return ()
    match = re.search(r"__version__ = \"(\d+)\.(\d+)\.(\d+)", file.read_text("utf-8", errors="replace"))
    if match is None:
        raise InputError("ComfyUI's version cannot be read.", "Update ComfyUI.")
    return tuple(map(int, match.groups()))


def _version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _python(root: Path, path: str | None) -> Path | None:
    if path is not None:
        file = expanded_path(path, "python")
        if not file.is_file():
            raise InputError(f"{file} does not exist; expected ComfyUI's Python.", "Correct --python.")
        return file
    names = (
        "venv/bin/python", ".venv/bin/python", "venv/Scripts/python.exe", "../python_embeded/python.exe",
    )  # fmt: skip
    return next((root / name for name in names if (root / name).is_file()), None)


def _package_versions(python: Path) -> dict[str, str]:
    answer = output_of(str(python), "-c", _VERSIONS, *FRAMEPACK, seconds=_SECONDS)
    try:
        return dict(json.loads(answer))
    except ValueError as error:
        raise InputError(f"{python} cannot be run, or is no Python.", "Correct --python.") from error

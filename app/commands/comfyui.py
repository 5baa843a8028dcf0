"""The commands that put the ROCm nodes into a ComfyUI and take them out again."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands.pack import NAME, START, write_pack
from app.jobs.stdio import say
from diffusers_helper.errors import InputError
from diffusers_helper.files import given_path, write_atomic

if TYPE_CHECKING:
    from app.commands.arguments import Parser

# The oldest and the newest version that the nodes were tested with.
OLDEST, TRIED = (0, 3, 40), (0, 33, 0)
SHIM = "longtake_rocm_nodes.py"
# The packages that the nodes import and that ComfyUI does not install, or in versions that may be too old.
NEEDED = {
    "diffusers": ">=0.42.1,<0.43",
    "transformers": ">=5.0,<6",
    "accelerate": ">=1.0",
    "huggingface_hub": ">=1.0",
    "safetensors": ">=0.5",
    "tokenizers": ">=0.22",
    "av": ">=18",
    "torch": ">=2.7",
}
_LAST_LINE = "from rocm_nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS"
_PATH = "the folder of ComfyUI, with main.py and custom_nodes"
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


def add_comfyui(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the two commands."""
    install = commands.add_parser(
        "install-comfyui-nodes",
        help="let ComfyUI load the ROCm nodes from here",
        description="Write one file of three lines, or a folder, into ComfyUI's folder custom_nodes, after "
        "checking its version and its packages. Nothing else is changed.",
        allow_abbrev=False,
    )
    install.set_defaults(run=install_nodes, verbose=False)
    install.add_argument("path", metavar="PATH", help=_PATH)
    install.add_argument(
        "--python", metavar="FILE", help="the Python that runs ComfyUI (default: the one in its folder)"
    )
    install.add_argument(
        "--copy",
        action="store_true",
        help="write a copy of the nodes that no module of another pack can disturb",
    )
    uninstall = commands.add_parser(
        "uninstall-comfyui-nodes", help="remove what install-comfyui-nodes has written", allow_abbrev=False
    )
    uninstall.set_defaults(run=uninstall_nodes, verbose=False)
    uninstall.add_argument("path", metavar="PATH", help=_PATH)


def install_nodes(arguments: argparse.Namespace) -> int:
    """Write the shim or the pack in the place of either, and print the result.

    Raises:
        InputError: If the folder is not that of ComfyUI, or if ComfyUI is too old or lacks packages.
    """
    root = _root(arguments.path)
    version = _version(root)
    if version < OLDEST:
        raise InputError(
            f"ComfyUI has version {_text(version)}; expected {_text(OLDEST)} or newer.", "Update it."
        )
    python = _python(root, arguments.python)
    if python:
        _check_packages(python)
    before = _installed(root, "this command", "Move it away.")
    file = root / "custom_nodes" / (NAME if arguments.copy else SHIM)
    if arguments.copy:
        write_pack(file)
    else:
        write_atomic(file, _shim().encode())
    _remove(place for place in before if place != file)  # ComfyUI would load the same nodes twice
    lines = [f"Wrote {file}. Start ComfyUI again to see the nodes, under ROCm Ninodes."]
    if version > TRIED:
        lines.append(f"ComfyUI has version {_text(version)}; the nodes were tested up to {_text(TRIED)}.")
    if python is None:
        lines.append(
            f"Its Python was not found: check that it has {', '.join(NEEDED)}, or name it with --python."
        )
    say(*lines)
    return 0


def uninstall_nodes(arguments: argparse.Namespace) -> int:
    """Remove the shim or the pack.

    Raises:
        InputError: If there is neither, or if something else is in its place.
    """
    root = _root(arguments.path)
    found = _installed(root, "install-comfyui-nodes", "Remove it by hand if you do not need it.")
    if not found:
        raise InputError(
            f"{root / 'custom_nodes' / SHIM} does not exist, and neither does {NAME} beside it, so there is "
            "nothing to remove."
        )
    _remove(found)
    say(*(f"Removed {place}." for place in found))
    return 0


def _installed(root: Path, writer: str, remedy: str) -> list[Path]:
    """Return the shim or the pack that are there.

    Raises:
        InputError: If something else has its name. The message names who should have written it.
    """
    places = [place for name in (SHIM, NAME) if (place := root / "custom_nodes" / name).exists()]
    for place in places:
        if not _is_ours(place):
            raise InputError(f"{place} was not written by {writer}.", remedy)
    return places


def _remove(places: Iterable[Path]) -> None:
    for place in places:
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()


def _shim() -> str:
    """Return the shim's three lines. The folder is last on the path, as ComfyUI has a package `app`, too."""
    folder = str(Path(__file__).resolve().parents[2])
    return f"import sys\nsys.path.append({folder!r})\n{_LAST_LINE}\n"


def _is_ours(file: Path) -> bool:
    if file.is_dir():
        start = file / "__init__.py"
        return start.is_file() and start.read_bytes() == START
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return len(lines) == 3 and lines[0] == "import sys" and lines[2] == _LAST_LINE


def _root(path: str) -> Path:
    root = given_path(path, "path").absolute()
    if not (root / "custom_nodes").is_dir() or not (root / "comfyui_version.py").is_file():
        raise InputError(
            f"{root} has no custom_nodes or no comfyui_version.py; expected the folder of ComfyUI.",
            "Give the folder that contains ComfyUI's main.py.",
        )
    return root


def _version(root: Path) -> tuple[int, ...]:
    text = (root / "comfyui_version.py").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"__version__ = \"(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise InputError("ComfyUI's version cannot be read.", "Update ComfyUI.")
    return tuple(map(int, found.groups()))


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _python(root: Path, given: str | None) -> Path | None:
    """Return the Python that runs ComfyUI, if it is known."""
    if given is not None:
        file = given_path(given, "python")
        if not file.is_file():
            raise InputError(f"{file} does not exist; expected ComfyUI's Python.", "Correct --python.")
        return file
    places = (
        "venv/bin/python",
        ".venv/bin/python",
        "venv/Scripts/python.exe",
        "../python_embeded/python.exe",
    )
    return next((root / place for place in places if (root / place).is_file()), None)


def _check_packages(python: Path) -> None:
    """Check the packages of `NEEDED` that a Python finds, without importing them.

    Raises:
        InputError: If one is missing or has another version.
    """
    wrong = {name: found for name, found in _versions(python).items() if not _fits(found, NEEDED[name])}
    if wrong:
        reported = [
            f"it has {name} {found}, where {NEEDED[name]} is expected" if found else f"it lacks {name}"
            for name, found in wrong.items()
        ]
        packages = " ".join(shlex.quote(name + NEEDED[name]) for name in wrong)
        raise InputError(
            f"ComfyUI's Python cannot run the nodes: {'; '.join(reported)}.",
            f"Install what is missing: {shlex.quote(str(python))} -m pip install {packages}",
        )


def _versions(python: Path) -> dict[str, str]:
    """Return the version of each package of `NEEDED` that a Python finds; "" for a missing one."""
    try:
        done = subprocess.run(
            [python, "-c", _VERSIONS, *NEEDED], capture_output=True, text=True, check=True, timeout=_SECONDS
        )
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InputError(f"{python} cannot be run ({type(error).__name__}).", "Correct --python.") from error


def _fits(version: str, wanted: str) -> bool:
    """Return whether a version lies within bounds such as ">=5.0,<6"; "" does not."""
    found = _numbers(version)
    return all(
        found < _numbers(bound) if bound.startswith("<") else found >= _numbers(bound)
        for bound in wanted.split(",")
    )


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[<>=]*([\d.]*\d)", version)
    return tuple(map(int, release[1].split("."))) if release else ()

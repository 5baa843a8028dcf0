"""Tests of the commands that put the nodes into ComfyUI, and of the command that examines a file."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from app.commands.comfyui import _python
from app.commands.pack import NAME
from diffusers_helper import __version__
from diffusers_helper.machine.packages import FRAMEPACK
from tests.app.conftest import Longtake
from tests.support.layers import ROOT


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    root = tmp_path / "ComfyUI with spaces"
    (root / "custom_nodes").mkdir(parents=True)
    (root / "comfyui_version.py").write_text('__version__ = "0.3.64"\n')
    return root


def test_the_pack_is_installed_replaced_and_removed_and_nothing_else(
    comfyui: Path, tmp_path: Path, longtake: Longtake, snapshot: SnapshotAssertion
) -> None:
    lines, places = list[str](), comfyui / "custom_nodes"

    def tell(verb: str, folder: Path, what: str = "") -> None:
        output = longtake.refused(f"{verb}-comfyui-nodes '{folder}'").replace(str(tmp_path), "TMP")
        there = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("custom_nodes/*"))
        lines.extend([f"> {verb} {what}".rstrip(), *output.splitlines(), f"there: {there}"])

    for verb in ("install", "install", "uninstall", "uninstall"):
        tell(verb, comfyui)
        assert (places / NAME / "_vendor" / "rocm_nodes" / "registry.py").is_file() == (verb == "install")
    for version in ("0.3.39", "0.99.0", "x"):
        (comfyui / "comfyui_version.py").write_text(f'__version__ = "{version}"\n')
        tell("install", comfyui, f"into {version}")
    (comfyui / "comfyui_version.py").write_text('__version__ = "0.3.64"\n')
    (places / NAME / ".git").mkdir()
    for verb in ("install", "uninstall"):
        tell(verb, comfyui, "over a checkout")
    shutil.rmtree(places / NAME)
    (places / NAME).mkdir()
    (places / NAME / "__init__.py").write_text("mine = 1\n")
    for verb in ("install", "uninstall"):
        tell(verb, comfyui, "over somebody's own")
    assert (places / NAME / "__init__.py").read_text() == "mine = 1\n"
    for inner in ("plain", "portable/ComfyUI"):  # as of --base-directory and the Desktop app
        (tmp_path / inner / "custom_nodes").mkdir(parents=True)
        tell("install", tmp_path / inner.partition("/")[0], f"into {inner}")
    python = sys.executable.rpartition("/bin/")[0]
    assert "\n".join(lines).replace(python, "ENV") == snapshot


def test_packages_are_checked_with_comfyuis_python(comfyui: Path, longtake: Longtake) -> None:
    python = comfyui / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without installed packages
    python.chmod(0o755)
    reported = longtake("install-comfyui-nodes", comfyui)
    assert f"cannot run with ComfyUI's Python yet: it lacks {', '.join(FRAMEPACK)}. Install" in reported
    requirements = comfyui / "custom_nodes" / NAME / "requirements.txt"
    assert f"'{python}' -m pip install -r '{requirements}'" in reported
    reported = longtake("install-comfyui-nodes", comfyui, "--python", sys.executable)
    assert "was not found" not in reported
    assert "cannot run" not in reported
    longtake("install-comfyui-nodes", comfyui, "--python", str(comfyui / "no"), code=2)


def test_versions_of_packages_are_checked(comfyui: Path, tmp_path: Path, longtake: Longtake) -> None:
    site = tmp_path / "site"
    for name, version in {"transformers": "4.57.1", "diffusers": "0.43.0"}.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    reported = longtake("install-comfyui-nodes", comfyui, "--python", python)
    assert "it has diffusers 0.43.0, where >=0.37.1,<0.43 is expected; it has transformers 4.57.1" in reported
    assert "accelerate" not in reported
    for version in ("0.3.40", "0.33.0"):  # the oldest, and the newest that was tested
        (comfyui / "comfyui_version.py").write_text(f'__version__ = "{version}"\n')
        assert "has version" not in longtake("install-comfyui-nodes", comfyui)
    names = (
        "../python_embeded/python.exe", "venv/Scripts/python.exe", ".venv/bin/python", "venv/bin/python",
    )  # fmt: skip
    for name in names:  # each one before those of other systems
        (comfyui / name).parent.mkdir(parents=True, exist_ok=True)
        (comfyui / name).touch()
        assert _python(comfyui, None) == comfyui / name


def test_the_pack_asks_for_the_packages_of_longtake() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    asked = [name + bounds for name, bounds in FRAMEPACK.items()]
    assert set(asked) <= set(lines)
    pack = ROOT / "rocm_nodes" / "pack"
    assert (pack / "requirements.txt").read_text().splitlines()[1:] == asked
    project = tomllib.loads((pack / "pyproject.toml").read_text())["project"]
    assert (project["dependencies"], project["version"]) == (asked, __version__)


def test_a_folder_that_cannot_be_written_is_named_in_one_line(comfyui: Path, longtake: Longtake) -> None:
    (comfyui / "custom_nodes").rmdir()
    (comfyui / "custom_nodes").symlink_to("/proc/self/task")
    (line,) = longtake("install-comfyui-nodes", comfyui, code=1).splitlines()
    assert line.startswith(f"{comfyui / 'custom_nodes'}")
    assert "cannot be used (No such file or directory)" in line

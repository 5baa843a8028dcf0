"""Tests of the commands that put the nodes into ComfyUI, and of the command that examines a file."""

import sys
import tomllib
from pathlib import Path

import pytest

from app.cli import main
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


def test_the_pack_replaces_itself(
    comfyui: Path, capsys: pytest.CaptureFixture[str], longtake: Longtake
) -> None:
    places = comfyui / "custom_nodes"
    for _ in range(2):
        assert main(["install-comfyui-nodes", str(comfyui)]) == 0
        assert [path.name for path in places.iterdir()] == [NAME]
        printed = capsys.readouterr().out
        assert f"Wrote {places / NAME}." in printed
        assert f"need {', '.join(FRAMEPACK)}: run it with -m pip install -r" in printed
    assert (places / NAME / "_vendor" / "rocm_nodes" / "registry.py").is_file()
    (places / NAME / "__pycache__").mkdir()
    assert main(["uninstall-comfyui-nodes", str(comfyui)]) == 0
    assert list(places.iterdir()) == []
    assert "does not exist" in longtake("uninstall-comfyui-nodes", comfyui, code=2)
    assert "expected a folder of ComfyUI" in longtake("install-comfyui-nodes", places, code=2)


@pytest.mark.parametrize("inner", ["", "ComfyUI"])
def test_folders_with_nodes_alone_are_found(tmp_path: Path, inner: str, longtake: Longtake) -> None:
    """Check the folders of --base-directory and the Desktop app, and the one around the portable version."""
    (tmp_path / inner / "custom_nodes").mkdir(parents=True)
    assert "ComfyUI's version is not known here; expected 0.3.40 or newer." in longtake(
        "install-comfyui-nodes", str(tmp_path)
    )
    assert (tmp_path / inner / "custom_nodes" / NAME / "pyproject.toml").is_file()


def test_a_checkout_of_the_pack_is_left_to_git(comfyui: Path, longtake: Longtake) -> None:
    longtake("install-comfyui-nodes", comfyui)
    (comfyui / "custom_nodes" / NAME / ".git").mkdir()
    assert "update it with git pull" in longtake("install-comfyui-nodes", comfyui, code=2)
    longtake("uninstall-comfyui-nodes", comfyui, code=2)


def test_a_folder_of_somebody_else_is_left_alone(comfyui: Path, longtake: Longtake) -> None:
    file = comfyui / "custom_nodes" / NAME / "__init__.py"
    file.parent.mkdir()
    file.write_text("mine = 1\n")
    longtake("install-comfyui-nodes", comfyui, code=2)
    assert longtake("uninstall-comfyui-nodes", comfyui, code=2).count("was not written by") == 1
    assert file.read_text() == "mine = 1\n"


@pytest.mark.parametrize(
    ("version", "code", "words"),
    [("0.3.39", 2, "ComfyUI has version 0.3.39; expected 0.3.40 or newer"),
     ("0.99.0", 0, "ComfyUI has version 0.99.0; the nodes were tested up to 0.33.0"),
     ("x", 2, "cannot be read")],
)  # fmt: skip
def test_versions_are_checked(
    comfyui: Path, version: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (comfyui / "comfyui_version.py").write_text(f'__version__ = "{version}"\n')
    assert main(["install-comfyui-nodes", str(comfyui)]) == code
    reported = capsys.readouterr()
    assert words in reported.out + reported.err
    assert (comfyui / "custom_nodes" / NAME).exists() == (code == 0)


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
    assert f"{comfyui / 'custom_nodes'}" in line
    assert "cannot be used (No such file or directory)" in line

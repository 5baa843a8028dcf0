"""Tests of the commands that put the nodes into ComfyUI, and of the command that examines a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import main
from app.commands.comfyui import NEEDED, SHIM
from app.commands.pack import NAME
from tests.support.layers import ROOT


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    root = tmp_path / "ComfyUI with spaces"
    (root / "custom_nodes").mkdir(parents=True)
    (root / "comfyui_version.py").write_text('__version__ = "0.3.64"\n')
    return root


@pytest.mark.slow
def test_the_shim_has_three_lines_and_loads_the_nodes_behind_the_hosts_packages(comfyui: Path) -> None:
    assert main(["install-comfyui-nodes", str(comfyui)]) == 0
    file = comfyui / "custom_nodes" / SHIM
    assert len(file.read_text().splitlines()) == 3
    host = comfyui / "app"
    host.mkdir()
    (host / "__init__.py").write_text("is_hosts = True\n")
    code = (
        f"import runpy; found = runpy.run_path({str(file)!r}); import app, json; "
        "print(json.dumps([app.is_hosts, sorted(found['NODE_CLASS_MAPPINGS'])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=comfyui, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    is_hosts, names = json.loads(done.stdout)
    assert is_hosts
    assert "ROCMOptimizedVAEDecode" in names


def test_installing_twice_and_removing_leaves_the_folder_as_it_was(
    comfyui: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["install-comfyui-nodes", str(comfyui)]) == 0
    assert f"check that it has {', '.join(NEEDED)}" in capsys.readouterr().out
    assert main(["uninstall-comfyui-nodes", str(comfyui)]) == 0
    assert list((comfyui / "custom_nodes").iterdir()) == []
    assert main(["uninstall-comfyui-nodes", str(comfyui)]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_copy_and_the_file_replace_each_other(comfyui: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = comfyui / "custom_nodes"
    for options, name in (([], SHIM), (["--copy"], NAME), (["--copy"], NAME), ([], SHIM), (["--copy"], NAME)):
        assert main(["install-comfyui-nodes", str(comfyui), *options]) == 0
        assert [path.name for path in places.iterdir()] == [name]
        assert f"Wrote {places / name}." in capsys.readouterr().out
    assert (places / NAME / "_vendor" / "rocm_nodes" / "registry.py").is_file()
    (places / NAME / "__pycache__").mkdir()
    assert main(["uninstall-comfyui-nodes", str(comfyui)]) == 0
    assert list(places.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--copy"]])
def test_a_folder_of_somebody_else_is_left_alone(
    comfyui: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = comfyui / "custom_nodes" / NAME / "__init__.py"
    file.parent.mkdir()
    file.write_text("mine = 1\n")
    assert main(["install-comfyui-nodes", str(comfyui), *options]) == 2
    assert main(["uninstall-comfyui-nodes", str(comfyui)]) == 2
    assert capsys.readouterr().err.count("was not written by") == 2
    assert file.read_text() == "mine = 1\n"


@pytest.mark.parametrize("command", ["install-comfyui-nodes", "uninstall-comfyui-nodes"])
def test_a_file_of_somebody_else_is_left_alone(
    comfyui: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = comfyui / "custom_nodes" / SHIM
    file.write_text("mine = 1\n")
    assert main([command, str(comfyui)]) == 2
    assert "was not written by" in capsys.readouterr().err
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
    assert (comfyui / "custom_nodes" / SHIM).exists() == (code == 0)


def test_packages_are_checked_with_comfyuis_python(comfyui: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = comfyui / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without installed packages
    python.chmod(0o755)
    assert main(["install-comfyui-nodes", str(comfyui)]) == 2
    reported = capsys.readouterr().err
    for name, bounds in NEEDED.items():
        assert f"it lacks {name}" in reported
        assert f"{name}{bounds}" in reported
    assert main(["install-comfyui-nodes", str(comfyui), "--python", sys.executable]) == 0
    assert "was not found" not in capsys.readouterr().out
    assert main(["install-comfyui-nodes", str(comfyui), "--python", str(comfyui / "no")]) == 2


def test_versions_of_packages_are_checked(
    comfyui: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    for name, version in {"transformers": "4.57.1", "diffusers": "0.43.0"}.items():
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert main(["install-comfyui-nodes", str(comfyui), "--python", str(python)]) == 2
    reported = capsys.readouterr().err
    assert "it has diffusers 0.43.0, where >=0.42.1,<0.43 is expected; it has transformers 4.57.1" in reported
    assert "accelerate" not in reported
    assert "-m pip install 'diffusers>=0.42.1,<0.43' 'transformers>=5.0,<6'" in reported
    assert not (comfyui / "custom_nodes" / SHIM).exists()


def test_the_packages_have_the_bounds_of_longtake() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    for name, bounds in NEEDED.items():
        assert name + bounds in lines


def test_another_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-comfyui-nodes", str(tmp_path)]) == 2
    assert "expected the folder of ComfyUI" in capsys.readouterr().err


def test_the_nodes_need_nothing_of_gradio() -> None:
    assert "gradio" not in NEEDED
    for file in (ROOT / "rocm_nodes").glob("*.py"):
        assert "import gradio" not in file.read_text()
        assert "from app" not in file.read_text()

"""Tests that the wheel holds what its users need: the command, the demo model, the page."""

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.fresh_checkout import REPOSITORY

PACKAGES = ("app", "cache", "diffusers_helper", "rocm_nodes")
FOLDERS = (*PACKAGES, "assets", "example_workflows")
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
ASK = """
from app.__main__ import start
from app.ui.form.markup import example_file
from diffusers_helper.models.downloads import absence_of
from diffusers_helper.models.registry import DEFAULT_MODEL, find_model
info = find_model(DEFAULT_MODEL)
assert callable(start) and absence_of(info) is None
print(info.folder, *sorted({example_file(prompt) for prompt in info.examples} - {None}), sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy without the folders of the repository that are not in it."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in FOLDERS:
        shutil.copytree(
            REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("*.pyc", "__pycache__")
        )
    for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    done = subprocess.run(
        (sys.executable, "-c", BUILD, built), cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = built.iterdir()
    return file


@pytest.mark.slow
def test_the_wheel_has_the_files_of_its_folders(wheel: Path) -> None:
    files = [file for name in FOLDERS for file in (REPOSITORY / name).rglob("*") if file.is_file()]
    expected = {
        file.relative_to(REPOSITORY).as_posix(): file.stat().st_size
        for file in files
        if "__pycache__" not in file.parts
    }
    assert {"assets/demo_model/longtake.json", "example_workflows/framepack.json"} < expected.keys()
    with ZipFile(wheel) as opened:
        sizes = {
            file.filename: file.file_size for file in opened.infolist() if ".dist-info/" not in file.filename
        }
        facts = next(name for name in opened.namelist() if name.endswith("/entry_points.txt"))
        points = ConfigParser()
        points.read_string(opened.read(facts).decode())
    assert sizes == expected
    assert {f"{name}/py.typed" for name in PACKAGES} <= sizes.keys()
    assert dict(points["console_scripts"]) == {"longtake": "app.__main__:start"}


@pytest.mark.slow
def test_what_is_installed_finds_the_demo_model_and_its_examples(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with ZipFile(wheel) as opened:
        opened.extractall(installed)
    environment = {"PYTHONPATH": str(installed), "HOME": str(tmp_path)}
    done = subprocess.run(
        (sys.executable, "-P", "-c", ASK), cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder, *examples = done.stdout.splitlines()
    assert folder == str(installed / "assets/demo_model")
    assert len(examples) == len(list((REPOSITORY / "assets/examples").glob("*.webp")))

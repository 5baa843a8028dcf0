"""Fixtures for the tests of the program: its command line, several of it over one folder, and a hub."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffusers_helper.models.registry import find_model
from tests.support.hub import Hub, light_hub
from tests.support.program import Program, answer
from tests.support.shared import Sharing


@pytest.fixture
def lit_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, Path]]:
    """Provide a hub with light files of FramePack F1, and the empty cache of this machine."""
    with light_hub(tmp_path, find_model("framepack-f1"), monkeypatch) as found:
        yield found


class Longtake:
    """The command line in the process of the tests."""

    def __init__(self, output: pytest.CaptureFixture[str]) -> None:
        self.output = output

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Run a command that ends with a code. Return what it prints, and if it fails, its errors, too."""
        self.output.readouterr()
        ended, out, err = answer(self.output, *map(str, arguments))
        assert ended == code, err
        return out + err if code else out

    def refused(self, command: str) -> str:
        """Run a command as it is typed, and return its exit code with all that it prints."""
        self.output.readouterr()
        ended, out, err = answer(self.output, *shlex.split(command))
        return f"{ended}: {out}{err}"


@pytest.fixture
def longtake(capsys: pytest.CaptureFixture[str]) -> Longtake:
    return Longtake(capsys)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.end()


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Sharing]:
    sharing = Sharing(tmp_path)
    yield sharing
    sharing.close()

"""Tests of hostile files, which are read in a process with limits, or are not readable within them."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.reading.process import Limits, ReadingProcess
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.weights.inspection import Inspection, inspect_weights
from diffusers_helper.weights.lora_files import read_lora_file
from tests.support.hostile import HOSTILE, hostile_loras, hostile_recipes, write_all

_LONGEST = 400
LIMITS = Limits(memory=2**29, seconds=3, wall_seconds=300.0)


@pytest.fixture(scope="module")
def process() -> Iterator[ReadingProcess]:
    made = ReadingProcess(LIMITS)
    yield made
    made.close()


def is_one_sentence(reported: str) -> bool:
    return 0 < len(reported) <= _LONGEST and reported.endswith(".")


def answer(process: ReadingProcess, reader: Callable[[Path], Any], file: Path) -> Any:
    """Return what a reader returns of a file, or the refusal that it raises, if not what the system says."""
    try:
        return process.read(reader, file)
    except InputError as error:
        return error
    except OSError as error:
        return f"{error}."


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_weights_are_told_in_a_sentence(kind: str, process: ReadingProcess, tmp_path: Path) -> None:
    for file in write_all(HOSTILE[kind](), tmp_path):
        facts = answer(process, inspect_weights, file)
        if isinstance(facts, Inspection):
            assert all(map(is_one_sentence, facts.problems)), (file.name, facts.problems)
            assert facts.problems or facts.tensors < 3, file.name
            assert len(str(dataclasses.asdict(facts))) < 3 * _LONGEST
        else:
            assert is_one_sentence(str(facts)), (file.name, facts)
        file.unlink()


@pytest.mark.slow
def test_hostile_loras_are_told_in_a_sentence(process: ReadingProcess, tmp_path: Path) -> None:
    for file in write_all(hostile_loras(), tmp_path):
        found = answer(process, read_lora_file, file)
        if isinstance(found, InputError):
            assert is_one_sentence(found.message), (file.name, found.message)
        else:
            assert len(found.pairs) == 2
            assert len(str(found.triggers)) < _LONGEST


@pytest.mark.slow
def test_hostile_recipes_are_told_in_a_few_sentences(process: ReadingProcess, tmp_path: Path) -> None:
    counts: dict[str, int] = {}
    for file in write_all(hostile_recipes(), tmp_path):
        found = answer(process, read_recipe, file)
        if isinstance(found, InputError):
            assert is_one_sentence(found.message), (file.name, found.message)
            assert found.remedy
        else:
            counts[file.name] = len(found.notices)
            assert all(map(is_one_sentence, found.notices))
    assert counts == {
        "50,000 keys.json": 1, "80,000 spans.json": 0, "50,000 uses.json": 1,
        "a precision of 3 MB.json": 1, "60,000 packages.json": 0,
    }  # fmt: skip

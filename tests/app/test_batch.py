"""Tests of several videos at once: every problem of a batch file is told with its line, before any starts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch import random_seed, read_batch, variants
from app.jobs.service import JobService
from diffusers_helper.errors import InputError
from diffusers_helper.request import MAX_SEED, GenerationRequest
from tests.app.conftest import Longtake
from tests.support.jobs import write_picture
from tests.support.program import Program

SCRIPTS = 'Ein rotes Boot, 红色的船 🛶, "quoted"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_picture(tmp_path / "boat.png")
    return tmp_path


def write(folder: Path, name: str, *lines: str) -> Path:
    file = folder / name
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_json_lines_and_csv_say_the_same(folder: Path) -> None:
    (folder / "sub").mkdir()
    settings = [
        {"image": "../boat.png", "prompt": SCRIPTS, "seed": 5, "seconds": 2.5},
        {"image": "../boat.png", "prompt": "two\nlines", "mode": "forward", "vae_tile": None},
    ]
    lines = write(
        folder / "sub", "a.jsonl", "# two videos", json.dumps(settings[0]), "", json.dumps(settings[1])
    )
    quoted = '"' + SCRIPTS.replace('"', '""') + '"'
    rows = write(
        folder / "sub", "a.csv", "\ufeffimage, prompt ,seed,seconds,mode,vae_tile",
        f"../boat.png,{quoted},5,2.5,,", "", '../boat.png,"two\nlines",,,forward,auto',
    )  # fmt: skip
    first, second = (read_batch(file, {"steps": 3}) for file in (lines, rows))
    assert list(first) == list(second) == [2, 4]
    assert first == second
    one, other = (found for found in second.values() if not isinstance(found, str))
    assert (one.prompt, one.seed, one.seconds, one.steps, one.mode) == (SCRIPTS, 5, 2.5, 3, "inverted")
    assert (other.prompt, other.mode, other.vae_tile) == ("two\nlines", "forward", None)
    assert Path(one.image).samefile(folder / "boat.png")


@given(st.integers(0, MAX_SEED), st.integers(1, 20))
def test_variants_differ_in_their_seeds_alone(seed: int, count: int) -> None:
    made = variants(GenerationRequest(image="x", seed=seed), count)
    assert made[0].seed == seed
    assert len({one.seed for one in made}) == len(made) == count
    assert len({(one.prompt, one.steps, one.image) for one in made}) == 1
    assert [one.seed for one in variants(GenerationRequest(image="x", seed=MAX_SEED), 2)] == [MAX_SEED, 0]


def test_the_number_of_variants_is_bounded() -> None:
    for count in 0, 1001:
        with pytest.raises(InputError, match="from 1 to 1000"):
            variants(GenerationRequest(image="x"), count)
    assert len({random_seed() for _ in range(20)}) > 1


def test_a_batch_with_a_problem_starts_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, longtake: Longtake
) -> None:
    monkeypatch.chdir(folder)
    write(folder, "a.jsonl", '{"image": "boat.png", "prompt": "a"}', '{"image": "boat.png", "vae_tile": 7}')
    reported = longtake("generate", "--batch", "a.jsonl", code=2).splitlines()
    assert reported[0].startswith("a.jsonl, line 2: --vae-tile is 7; expected")
    assert reported[1] == "1 line of a.jsonl cannot be used; nothing was started. Correct what was named."
    write(folder, "b.csv", "image;prompt;vae_tile", "boat.png;a;7")
    reported = longtake("generate", "--batch", "b.csv", code=2)
    assert reported.startswith("b.csv, line 2: vae_tile is 7; expected")
    assert not (folder / "outputs").exists()


def test_a_dry_run_prints_what_would_be_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, longtake: Longtake
) -> None:
    monkeypatch.chdir(folder)
    write(folder, "a.jsonl", '{"image": "boat.png", "prompt": "a", "seed": 4}')
    options = ("--variants", 2, "--steps", 3, "--dry-run", "--json")
    lines = longtake("generate", "--batch", "a.jsonl", *options).splitlines()
    made = [GenerationRequest.from_dict(json.loads(line)) for line in lines]
    assert [(one.seed, one.steps, one.prompt) for one in made] == [(4, 3, "a"), (5, 3, "a")]
    assert not (folder / "outputs").exists()


def test_all_videos_of_a_batch_are_made_in_their_order(program: Program) -> None:
    scripts = ["sections=1 steps=1", "fault=error at=1", "sections=2 steps=1"]
    lines = [json.dumps({"image": "picture.png", "prompt": script}) for script in scripts]
    write(program.folder, "a.jsonl", *lines)
    code, out, err = program.run(
        "generate", "--batch", "a.jsonl", "--model", str(program.model), "--out", str(program.outputs),
        "--json",
    )  # fmt: skip
    ends = [event for event in map(json.loads, out.splitlines()) if event["event"] in ("finished", "failed")]
    assert [(end["event"], end["frames"]) for end in ends] == [
        ("finished", 37),
        ("failed", 0),
        ("finished", 73),
    ]
    assert code == 1, err
    jobs = JobService(program.outputs).jobs()
    assert [job.request.prompt for job in reversed(jobs)] == scripts

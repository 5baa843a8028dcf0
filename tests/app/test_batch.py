"""Tests of several videos at once: every problem of a batch file is told with its line, before any starts."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch import batch_lines, random_seed, read_batch, variants
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model
from diffusers_helper.request import MAX_SEED, GenerationRequest
from tests.app.conftest import Longtake
from tests.support.clips import scene
from tests.support.films import write_film
from tests.support.jobs import write_blank_model, write_picture

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


def test_each_line_that_cannot_be_used_says_why_and_the_others_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")  # from which no path counts
    film = write_film(folder / "film.mp4", [*scene(4)])
    (folder / "mine.safetensors").touch()
    monkeypatch.setattr("app.batch.check_loras", lambda lora, info: None)
    model = str(write_blank_model(folder / "model"))
    boat: dict[str, Any] = {"image": "boat.png", "prompt": "a"}
    settings: list[Any] = [
        boat, [1], boat | {"model": 7}, boat | {"model": "nope"}, boat | {"model": model},
        {"image": "gone.png"},
        boat | {"lora": "./mine.safetensors:0.5"}, boat | {"steps": 0}, boat | {"steps": 9}, {"prompt": " "},
        {"video": film.name, "prompt": "b", "mode": "forward"}, {"video": "gone.mp4", "prompt": "b"},
        {"model": "helios-distilled", "prompt": "c"},
    ]  # fmt: skip

    def check(request: GenerationRequest) -> None:
        if request.steps == 9:
            raise InputError("It does not fit.", "Take less.")

    file = write(folder, "a.txt", "# a list", *map(json.dumps, settings), "{", "   ")
    entries = read_batch(file, {"seed": 3, "prompt": "z"}, check)
    assert [*entries] == [*range(2, 16)]
    used = {line: entry for line, entry in entries.items() if not isinstance(entry, str)}
    assert {line: entry.seed for line, entry in used.items()} == dict.fromkeys((2, 8, 12, 14), 3)
    assert used[8].lora == f"{folder / 'mine.safetensors'}:0.5"
    assert used[12].video == str(film)
    assert (used[14].steps, used[14].prompt) == (
        find_model("helios-distilled").default_settings["steps"],
        "c",
    )
    words = (
        "It is [1]; expected a JSON object", "`model` is 7", "`model` is 'nope'",
        f"`model` is '{folder}"[:30],
        "The picture", "`steps` is 0", "It does not fit. Take less.", "There is no picture and no prompt",
        "The video", "It is not JSON",
    )  # fmt: skip
    for reason, start in zip(
        (entry for entry in entries.values() if isinstance(entry, str)), words, strict=True
    ):
        assert reason.startswith(start)
    assert not isinstance(read_batch(file, {}, allow_folder=True)[6], str)


def test_a_file_has_bounds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.batch.MAX_VIDEOS", 2)
    monkeypatch.setattr("app.batch.MAX_BYTES", 40)
    line = '{"prompt": "a"}'
    assert len([*batch_lines(write(folder, "a.jsonl", line, line, ""))]) == 2
    for lines, words in (
        (('{"a": 1}',) * 3, "more than 2 lines"), ((line, line, " " * 8), None),
        ((line, line, " " * 9), "larger than"), (("# a",), "no line with a video"),
    ):  # fmt: skip
        file = write(folder, "a.jsonl", *lines)
        with pytest.raises(InputError, match=words) if words else nullcontext():
            assert [*batch_lines(file)]


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

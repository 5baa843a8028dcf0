"""Tests of times in prompts and of pictures: what is understood, and what is told before a video starts."""

import json
from pathlib import Path

import pytest

from app.cli import main
from diffusers_helper.conditions.timeline import Timeline
from diffusers_helper.conditions.times import time_notes
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.request import GenerationRequest
from diffusers_helper.timed_pictures import timed_pictures_of
from tests.support.jobs import write_picture


def notes_on(prompt: str, **settings: object) -> list[str]:
    values = {"image": "a.png", "prompt": prompt, "seconds": 4.8, **settings}
    return time_notes(GenerationRequest.from_dict(values), FRAMEPACK)


def unread(excerpt: str) -> str:
    return f"{excerpt!r} is no time that is understood and counts as words. Write it as [2.4s: ...]."


@pytest.mark.parametrize(
    ("cue", "start", "end"),
    [
        ("[1,5s: b]", 1.5, None), ("[0:02: b]", 2, None), ("[1:02,5: b]", 62.5, None),
        ("[0:01:00 : b]", 60, None), ("[2 sec: b]", 2, None), ("[2 Seconds: b]", 2, None),
        ("[2S:b]", 2, None), ("[2s：b]", 2, None), ("[2–4s: b]", 2, 4), ("[2s-4: b]", 2, 4),
        ("[0:02-0:04: b]", 2, 4),
        ("[2,4s — 4,8s: b]", 2.4, 4.8),
    ],
)  # fmt: skip
def test_times_are_understood_as_people_write_them(cue: str, start: float, end: float | None) -> None:
    (found,) = Timeline.of(f"a {cue}").cues
    assert (found.start, found.end, found.text) == (start, end, "b")
    assert Timeline.of(f"a {cue}").base == "a"


@pytest.mark.parametrize(
    ("text", "time"), [("1,5s: p.png", 1.5), ("0:02: p.png", 2), ("2 sec@0.25: p.png", 2), ("2S: p.png", 2)]
)
def test_times_of_pictures_are_understood_in_the_same_way(text: str, time: float) -> None:
    (picture,) = timed_pictures_of(text)
    assert (picture.time, picture.file) == (time, "p.png")


@pytest.mark.parametrize(
    ("prompt", "excerpt"),
    [
        ("a [2s x]", "[2s x]"), ("a [2.4s: b", "[2.4s: b"), ("a [2.4: x]", "[2.4: x]"),
        ("a [-1s: y]", "[-1s: y]"), ("a [2-4: x]", "[2-4: x]"), ("a [0:02 x]", "[0:02 x]"),
        ("a [2s]", "[2s]"),
        ("2s: it jumps", "2s: it jumps"), ("a (2.4s: b)", "2.4s: b)"), ("a [2.4s: b [c] d]", "[2.4s: b [c]"),
    ],
)  # fmt: skip
def test_a_time_that_is_not_understood_is_told_and_stays_words(prompt: str, excerpt: str) -> None:
    assert notes_on(prompt) == [unread(excerpt)]
    assert Timeline.of(prompt) == Timeline(prompt, ())


@pytest.mark.parametrize(
    "prompt", ["a [red] ball (1:2)", "[3 balls], 16:9 film", "at 0:30 or 12:30", "[s: x]", "[3]"]
)
def test_other_numbers_are_only_words(prompt: str) -> None:
    assert notes_on(prompt) == []


def test_what_a_video_does_not_do_as_written_is_told() -> None:
    assert notes_on("a [2.4s: b] [3.6s: c]") == []
    assert notes_on("a [2.4s-9s: b] [9s: c] [9s: seed 7] [1s: seed 3]") == [
        "9 s is after the end of the video.", "9 s is after the end of the video.",
        "9 s is moved to 4.8 s, where sections meet.", "1 s is moved to 1.2 s, where sections meet.",
    ]  # fmt: skip
    assert notes_on("a [2.4s: b] [2.5s: c]") == [
        "[2.4s: b] has no section, since another part begins at the same border.",
        "2.5 s is moved to 2.4 s, where sections meet.",
    ]
    assert notes_on("a", pictures="1s: p.png\n2.4s: q.png\n2,5s: r.png\n4.8s: s.png") == [
        "The picture at 1 s is moved to 1.2 s.",
        "The picture at 2.4 s has no effect, since another one comes at 2.4 s.",
        "The picture at 2.5 s is moved to 2.4 s.",
        "The picture at 4.8 s is after the end of the video, and has no effect.",
    ]
    assert notes_on("a", pictures="1s: p.png", one_frame=9) == []  # they are only further pictures there


PROMPT = "a [2s x] [9s: b]"
TOLD = [unread("[2s x]"), "9 s is after the end of the video."]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_picture(tmp_path / "boat.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_tells_it_before_the_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--image", "boat.png", "--prompt", PROMPT, "--seconds", "4.8"]
    assert main(["generate", *arguments, "--dry-run"]) == 0
    assert capsys.readouterr().err.splitlines() == TOLD
    assert main(["jobs", "add", *arguments]) == 0
    assert capsys.readouterr().err.splitlines() == TOLD
    assert main(["plan", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"][-2:] == TOLD
    (folder / "a.csv").write_text(f"image,prompt\nboat.png,a\nboat.png,{PROMPT}\n")
    assert main(["generate", "--batch", "a.csv", "--dry-run"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"a.csv, line 3: {sentence}" for sentence in TOLD]

"""Tests of `generate` with a recipe and with a branch."""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from app.commands import origin
from app.jobs.service import JobService
from diffusers_helper.conditions.picture_file import plain_png
from diffusers_helper.errors import InputError
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Span
from diffusers_helper.provenance.metadata import png_chunks
from diffusers_helper.provenance.recipe import Recipe
from diffusers_helper.request import GenerationRequest
from tests.app.conftest import Longtake
from tests.support.jobs import write_picture
from tests.support.transcripts import Transcript

PICTURE = Image.effect_noise((64, 96), 80).convert("RGB")


def write_still(file: Path, **settings: object) -> Recipe:
    """Write a still of a video, whose recipe has two spans and no model of a name."""
    request = GenerationRequest.from_dict(
        {"image": "x", "prompt": "sections=3 steps=1", "seconds": 3.6, **settings}
    )
    spans = [Span.of(1, GenerationRequest(image="x", prompt="eine Möwe 海鸥", seconds=3.6))]
    made = Recipe.of(
        request, spans, (), model=None, side=64, made_with={}, pictures={"image": plain_png(PICTURE)}
    )  # fmt: skip
    file.write_bytes(plain_png(Image.new("RGB", (20, 20)), png_chunks(made.to_json(), made.pictures)))
    return made


def test_where_jobs_come_from(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    def follow(service: JobService, queue_jobs: Any, arguments: object) -> int:
        queue_jobs(service)
        return 0

    monkeypatch.setattr("app.commands.generate.follow_jobs", follow)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    story, add = Transcript(tmp_path, capsys, monkeypatch), "generate --image TMP/picture.png --seconds 3.6"
    write_picture(tmp_path / "picture.png")
    write_still(tmp_path / "still.png", seed=11, steps=4)
    boat = {"image": "picture.png", "prompt": "a boat [2.5s: it sinks]"}
    (tmp_path / "a.jsonl").write_text(
        f"{json.dumps(boat)}\n{json.dumps(boat | {'seed': 4, 'prompt': 'b'})}\n"
    )
    story(
        f"{add} --prompt 'a ball' --mode forward --wait",
        f"{add} --mode forward --prompt b --variants 2 --seed 5",
        f"{add} --prompt c --steps 3 --cfg 2 --save-preset mine",
        "generate --image TMP/picture.png --preset mine --seed 8 --cfg 1",
        "generate --batch TMP/a.jsonl --steps 3 --wait --yes", "generate --batch TMP/a.jsonl --dry-run",
        f"{add} --prompt '[9s: late]' --dry-run --variants 2",
        "generate --recipe TMP/still.png --model demo --wait",
        "generate --recipe TMP/still.png --model demo --image TMP/picture.png --seed 4 --shape 1:1",
    )  # fmt: skip
    store = JobService(story.outputs).queue.store
    for job, state in (("job-a", "cancelled"), ("job-b", "cancelled"), ("job-c", "finished")):
        folder = JobFolder(story.outputs / job)
        folder.sections.mkdir()
        for number in (1, 2, 3)[: 2 + (job == "job-c")]:
            folder.latents(number).write_bytes(b"latents")
        store.enter(job, "running")
        store.enter(job, state)  # pyright: ignore[reportArgumentType]
    story(
        "generate --branch job-a --keep 1 --seed 7 --wait", "generate --branch job-a --keep 2 --crf 30",
        "generate --resume job-b --wait", "generate --resume job-c",
        "generate --branch job-a --keep 2 --prompt on", "generate --branch job-a --longer 1.2",
        "generate --branch job-c --longer 1.2 --wait --steps 3",
    )  # fmt: skip
    assert story.transcript() == snapshot


def test_models_that_are_not_here_are_got_once_or_refused_before_anything_is_queued(
    tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, plain = list[Any](), origin.provide_model
    monkeypatch.setattr(origin, "NotHere", lambda absence: InputError("It is not here.", "Get it."))
    monkeypatch.setattr(origin, "download", lambda model, as_json: heard.append(model.name))
    for model, asked, room, got in (
        ("demo", {"yes": False}, True, []), ("framepack-f1", {"yes": True}, True, ["framepack-f1"]),
        ("framepack-f1", {"yes": True, "dry_run": True}, True, []),
        ("framepack-f1", {"yes": True}, False, None),
        ("framepack-f1", {"yes": False, "dry_run": True}, True, None),
    ):  # fmt: skip
        absence = None if model == "demo" else SimpleNamespace(has_room=room)
        monkeypatch.setattr(origin, "absence_of", lambda info, absence=absence: absence)
        heard.clear()
        with pytest.raises(InputError, match="not here") if got is None else nullcontext():
            plain(model, argparse.Namespace(**asked))
        assert heard == (got or [])
    monkeypatch.setattr(origin, "provide_model", lambda model, _: heard.append(model))
    monkeypatch.setattr(origin, "check_plan", lambda request, image=None: heard.append(type(image)))
    (tmp_path / "a.jsonl").write_text('{"model": "framepack-f1", "prompt": "a"}\n{"prompt": "b"}\n' * 2)
    longtake("generate", "--batch", tmp_path / "a.jsonl", "--dry-run")
    assert heard == [*[type(None)] * 4, "framepack-f1", "demo"]
    heard.clear()
    write_still(tmp_path / "still.png")
    longtake("generate", "--recipe", tmp_path / "still.png", "--model", "demo", "--dry-run")
    assert heard == [bytes, "demo"]


def test_words_alone_make_a_video_also_from_its_recipe(tmp_path: Path, longtake: Longtake) -> None:
    arguments = ["--prompt", "a ball", "--shape", "16:9"]
    out = longtake("generate", "--dry-run", "--json", *arguments)
    request = json.loads(out)
    assert (request["image"], request["shape"]) == ("", "16:9")
    (tmp_path / "request.json").write_text(out)
    again = ["--recipe", str(tmp_path / "request.json")]
    assert json.loads(longtake("generate", "--dry-run", "--json", *again)) == request

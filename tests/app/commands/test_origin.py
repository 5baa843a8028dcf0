"""Tests of `generate` with a recipe and with a branch."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.jobs.service import JobService
from diffusers_helper.conditions.picture_file import load_picture, plain_png
from diffusers_helper.conditions.pictures import stored_request
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span
from diffusers_helper.provenance.metadata import png_chunks
from diffusers_helper.provenance.recipe import Recipe
from diffusers_helper.request import GenerationRequest
from tests.app.conftest import Longtake
from tests.support.jobs import write_picture
from tests.support.program import Program

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


@pytest.mark.slow
def test_a_recipe_and_then_a_branch_of_its_video(program: Program) -> None:
    made = write_still(program.folder / "still.png", seed=11, steps=4)
    shared = ("--out", str(program.outputs))
    arguments = ("--model", str(program.model), "--steps", "6", *shared)
    code, out, err = program.run("generate", "--recipe", "still.png", *arguments)
    assert code == 0, err
    folder = JobFolder(Path(out.splitlines()[-1]).parent)
    request = stored_request(folder.request.read_bytes(), folder)
    assert (request.seed, request.steps, request.resolution, request.seconds) == (11, 6, 64, 3.6)
    assert np.array_equal(load_picture(folder.input), PICTURE)
    assert Lineage.read(folder.lineage) == Lineage(made.spans)

    folder.sections.mkdir()
    for number in 1, 2:
        (folder.sections / f"{number:04}.safetensors").write_bytes(b"latents")
    branch = ("generate", "--branch", folder.job, "--keep", "2")
    code, out, err = program.run(*branch, "--seed", "12", *shared)
    assert code == 0, err
    assert "The last 2.4 s stay, and what comes before them is made anew." in err
    child = JobFolder(Path(out.splitlines()[-1]).parent)
    lineage = Lineage.read(child.lineage)
    assert (lineage.parent, lineage.kept, [span.last for span in lineage.spans]) == (folder.job, 2, [1, 2])
    assert lineage.spans[0].settings["prompt"] == "eine Möwe 海鸥"
    assert json.loads(child.request.read_text())["seed"] == 12
    assert (child.sections / "0002.safetensors").samefile(folder.sections / "0002.safetensors")
    assert child.input.read_bytes() == folder.input.read_bytes()

    code, _, err = program.run(*branch, "--crf", "30", *shared)
    assert code == 2
    assert "A branch cannot change --crf. The kept sections were already encoded with it." in err
    assert len([path for path in program.outputs.iterdir() if path.name[0] != "."]) == 2


def test_a_picture_of_the_command_takes_the_place_of_the_recipes(
    tmp_path: Path, longtake: Longtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = JobService(tmp_path / "outputs")
    monkeypatch.setattr("app.commands.generate.follow_jobs", lambda _, queue, arguments: len(queue(service)))
    write_still(tmp_path / "still.png")
    picture = write_picture(tmp_path / "own.png")
    arguments = ("--recipe", tmp_path / "still.png", "--model", "demo", "--image", picture)
    longtake("generate", *arguments, "--outputs", service.queue.store.outputs, code=1)
    (job,) = service.queue.jobs()
    assert np.array_equal(load_picture(JobFolder(job.folder).input), load_picture(picture))


def test_words_alone_make_a_video_also_from_its_recipe(tmp_path: Path, longtake: Longtake) -> None:
    arguments = ["--prompt", "a ball", "--shape", "16:9"]
    out = longtake("generate", "--dry-run", "--json", *arguments)
    request = json.loads(out)
    assert (request["image"], request["shape"]) == ("", "16:9")
    (tmp_path / "request.json").write_text(out)
    again = ["--recipe", str(tmp_path / "request.json")]
    assert json.loads(longtake("generate", "--dry-run", "--json", *again)) == request

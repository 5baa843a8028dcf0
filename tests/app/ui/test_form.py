"""Tests of the form's values and of what the page says about them, without a browser."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form import settings as form
from app.ui.form.actions import Actions
from app.ui.form.describe import Describer, example_program
from app.ui.models.present import ModelPresenter
from app.ui.pictures import Size, crop_of, upload_path
from app.ui.planner import Planner
from app.ui.timeline import strip
from diffusers_helper.conditions.picture_file import fit_picture
from diffusers_helper.errors import InputError
from diffusers_helper.families.framepack import FRAMEPACK
from diffusers_helper.models.registry import ModelInfo, find_model
from diffusers_helper.request import GenerationRequest
from tests.support.pages import write_photo
from tests.support.staged_engine import StagedEngine

DEMO = find_model("demo")
PLANNER = Planner()


@given(
    width=st.integers(16, 400),
    height=st.integers(16, 400),
    side=st.sampled_from([64, 128, 640]),
    position=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    zoom=st.sampled_from([1.0, 2.0]),
)
def test_the_crop_shown_is_the_one_that_is_cut(
    width: int, height: int, side: int, position: float, zoom: float
) -> None:
    shape = FRAMEPACK.nearest_bucket(height, width, side, 16)
    crop = (position, 1 - position, zoom)
    left, top, share_x, share_y = crop_of(Size(width, height, width, height), *shape, *crop)
    # Each pixel's value is its column or row, so that the result shows which part of the picture was kept.
    places = np.zeros((height, width, 3), np.float32)
    places[..., 0], places[..., 1] = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    channels = [Image.fromarray(places[..., channel]) for channel in (0, 1)]
    across, down = (np.asarray(fit_picture(one, *shape, *crop)) for one in channels)
    assert across.mean() == pytest.approx(left + share_x / 2, abs=0.06)
    assert down.mean() == pytest.approx(top + share_y / 2, abs=0.06)
    assert across[0, -1] - across[0, 0] == pytest.approx(share_x, abs=0.12)
    assert down[-1, 0] - down[0, 0] == pytest.approx(share_y, abs=0.12)
    assert max(share_x, share_y) == 1 / zoom


def test_a_picture_with_room_around_it_is_shown_whole() -> None:
    assert crop_of(Size(200, 100, 200, 100), 160, 80, 0.2, 0.8, 0.25) == (0, 0, 1, 1)
    assert crop_of(Size(200, 100, 200, 100), 160, 80, 0.5, 0.5, 0.5) == (0.25, 0, 0.5, 1)


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([*GenerationRequest.__dataclass_fields__, *form.PAGE_ONLY, "other"])


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


@given(kept=st.dictionaries(names, anything) | anything)
@example(kept={"seed": 0.5})
@example(kept={"prompt": "\0"})
@example(kept={"negative": "\ud800"})
def test_whatever_a_browser_kept_gives_settings_that_can_be_used(catalogue: Catalogue, kept: Any) -> None:
    usable = form.usable_values(catalogue, json.dumps(kept))
    if usable:
        GenerationRequest.from_dict(form.to_request(usable, DEMO, PLANNER) | {"image": "x"})
        assert usable["model"] in catalogue.names


def test_the_example_program_names_what_was_changed_and_python_can_read_it() -> None:
    settings = form.defaults(DEMO, PLANNER) | {
        "model": "demo", "prompt": 'say "hi"\n', "seed": 7, "crop": 0.25,
    }  # fmt: skip
    settings |= {"image": {"path": "x", "orig_name": "it's.png"}, "end_image": None}
    text = example_program(form.to_request(settings, DEMO, PLANNER) | {"mode": None}, "demo")
    (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.keywords]
    given = {one.arg: one.value for one in call.keywords}
    picture = given.pop("image")
    assert isinstance(picture, ast.Call)
    assert ast.literal_eval(picture.args[0]) == "it's.png"
    assert {name: ast.literal_eval(value) for name, value in given.items()} == {
        "prompt": 'say "hi"\n', "seed": 7, "steps": 4, "crop": 0.25, "api_name": "/generate",
    }  # fmt: skip


def test_settings_come_back_as_they_were_kept() -> None:
    kept = form.defaults(DEMO, PLANNER) | {"model": "demo", "prompt": "a ball", "seed": 7, "seconds": 9.5}
    assert form.usable_values(Catalogue(), json.dumps(kept)) == kept
    assert form.usable_values(Catalogue(), json.dumps(kept | {"model": "gone", "mode": "sideways"})) == kept


def test_the_models_own_values_are_the_first_ones() -> None:
    assert (DEMO.steps, form.defaults(DEMO, PLANNER)["steps"]) == (4, 4)
    assert form.defaults(replace(DEMO, steps=30, guidance=6.0), PLANNER)["guidance"] == 6.0
    assert form.defaults(find_model("framepack-f1"), PLANNER)["steps"] == 25
    assert form.to_request({"resolution": 128}, DEMO, PLANNER)["resolution"] is None
    assert form.to_request({"resolution": 192}, DEMO, PLANNER)["resolution"] == 192


def test_a_seed_that_a_browser_rounds_is_refused() -> None:
    assert form.to_request({"seed": 2**53 - 1}, DEMO, PLANNER)["seed"] == 2**53 - 1
    with pytest.raises(InputError) as refusal:
        form.to_request({"seed": 2**53}, DEMO, PLANNER)
    assert refusal.value.setting == "seed"


def test_the_description_follows_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    engine = StagedEngine()
    service = JobService(tmp_path / "outputs", engine)
    describer = Describer(service, Catalogue())
    photo = {"path": str(write_photo(tmp_path / "photo.png"))}
    values = form.defaults(DEMO, PLANNER) | {"model": "demo", "image": photo}
    reported = describer.describe(values)
    assert "5 s becomes <b>4.83 s</b> (145 frames, 4 sections)." in reported["markup"]["length"]
    assert "The first video will show how long it takes." in reported["markup"]["length"]
    assert reported["facts"]["size"] == "Video: 144 × 112"
    assert reported["facts"]["look"] == "new seed · 4 steps · guidance 10"
    assert "640 × 480" not in describer.describe(values | {"resolution": 640})["facts"]["size"]
    assert reported["markup"]["timeline-note"] == ""
    assert describer.describe(values)["facts"]["starts"] == "picture or words"
    one_frame = describer.describe(values | {"one_frame": 9, "image": None, "prompt": "a"})
    assert one_frame["facts"]["starts"] == "picture"
    assert "One frame needs a picture to start from." in one_frame["markup"]["picture-note"]
    wordy = values | {"image": None, "prompt": "a"}
    assert "starts from your words alone" in describer.describe(wordy)["markup"]["picture-note"]
    continuing = wordy | {"extras": form.Extras({"video": "x.mp4"}).to_text()}
    assert describer.describe(continuing)["markup"]["picture-note"] == ""
    assert "mode" not in one_frame["facts"]["unused"]
    assert "mode" in describer.describe(values | {"model": "helios-distilled"})["facts"]["unused"]
    backwards = describer.describe(values | {"prompt": "<a> [4s-2s: b]"})
    assert "&#x27;[4s-2s: b]&#x27;; expected an end after its begin" in backwards["markup"]["timeline-note"]
    assert backwards["facts"]["timeline"]["sections"] == []
    assert describer.describe(values | {"image": {"path": "/etc/passwd"}})["facts"]["crops"] == {}
    text = describer.describe(values | {"image": {"path": str(_text(tmp_path))}})
    assert "not a picture" in text["markup"]["picture-note"]
    broken = values | {"seconds": "<b>", "steps": None, "cfg": "x", "seed": "<i>"}
    assert describer.describe(broken)["markup"]["length"] == ""
    assert "<" not in describer.describe(broken)["facts"]["look"]
    service.start()
    try:
        engine.go(100)
        Actions(service, Catalogue()).form_example("demo", 0, True)
        (job,) = service.jobs()
        assert [item for item in service.follow(job.id) if item][-1][1].is_final
        assert "judging by this machine’s last job." in describer.describe(values)["markup"]["length"]
    finally:
        service.stop()


def timeline_of(**values: object) -> tuple[dict[str, Any], str]:
    return strip({"seconds": 5, "mode": "inverted", **values}, DEMO.family)


def test_the_strip_has_the_sections_of_the_video_and_their_words() -> None:
    facts, note = timeline_of(prompt="<a> [2s-4s: b]", prompt_blend=2)
    names = ("time", "words", "begins", "share")
    assert [tuple(one[name] for name in names) for one in facts["sections"]] == [
        ("0.0 – 1.2 s", "<a>", True, 100), ("1.2 – 2.4 s", "<a>", False, 100),
        ("2.4 – 3.6 s", "b", True, 33), ("3.6 – 4.8 s", "<a>", True, 33),
    ]  # fmt: skip
    assert [one["tone"] for one in facts["sections"]] == [1, 1, 0, 1]
    assert facts["sections"][2]["label"] == "Words for section 3, 2.4 – 3.6 s, 33 % new words"
    assert "The words change at 2.4 and 3.6 s. 2 s is moved to 2.4 s, where sections meet." in note
    assert "4 s is moved to 3.6 s" in note
    _, note = timeline_of(prompt="a [0s: a] [9s: b]")
    assert "The same words hold throughout. 9 s is after the end of the video." in note
    _, note = timeline_of(prompt="a [2s x]", pictures="9s: p.png")
    assert "[2s x]&#x27; is no time that is understood and counts as words." in note
    assert "The picture at 9 s is after the end of the video, and has no effect." in note
    assert timeline_of(seconds=None)[0]["sections"] == []
    facts, note = timeline_of(prompt="a [1s: seed 7]")
    assert [one["change"] for one in facts["sections"]] == ["", "seed 7", "seed 7", "seed 7"]
    assert "1 s is moved to 1.2 s" in note
    facts, _ = timeline_of(prompt="a [1.2s-2.4s: seed 7] [0s-2.4s: lora film:0.5]")
    assert [one["change"] for one in facts["sections"]] == ["film 0.5", "seed 7, film 0.5", "", ""]


def test_the_strip_waits_for_an_order_that_the_model_has() -> None:
    facts, _ = strip({"prompt": "a", "mode": "inverted"}, find_model("helios-distilled").family)
    assert facts["sections"] == []


def test_what_is_written_in_the_strip_becomes_the_prompt_that_is_started() -> None:
    values: dict[str, Any] = {"prompt": "a", "seconds": 5, "mode": "inverted"}
    facts, _ = timeline_of(**values, section_words='["a", "b", "a", "a"]')
    assert facts["prompt"] == "a [1.2s-2.4s: b]"
    assert [one["words"] for one in facts["sections"]] == ["a", "b", "a", "a"]
    plain = form.to_request(values, DEMO, PLANNER)
    asked = form.to_request(values | {"section_words": '["a", "b", "a", "a"]'}, DEMO, PLANNER)
    assert asked == plain | {"prompt": facts["prompt"]}
    assert form.to_request(values | {"section_words": ""}, DEMO, PLANNER) == plain
    for other in ('["b"]', '["b", "b", "b", 1]', "[", "{}", 7):  # of another length, or forged
        assert timeline_of(**values, section_words=other)[0]["prompt"] == "a"


def _text(folder: Path) -> Path:
    path = folder / "holiday.jpg"
    path.write_text("not a picture")
    return path


@pytest.mark.parametrize(("missing", "then"), [([], "enlarge:4"), (["ncnn"], "")])
def test_an_example_is_made_with_the_models_own_settings(
    missing: list[str], then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ui.form.actions.missing_packages", lambda: missing)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    service = JobService(tmp_path / "outputs", StagedEngine())
    actions = Actions(service, Catalogue())
    filled = actions.form_example("demo", 0, True)["values"]
    assert Path(upload_path(filled["image"], "image")).is_relative_to(tmp_path / "uploads")
    (job,) = service.jobs()
    request = job.request
    assert request.prompt == filled["prompt"] == DEMO.examples[0]
    assert (request.seconds, request.steps, request.resolution) == (filled["seconds"], 4, None)
    assert (request.then, filled.get("then", "")) == (then, "")
    with Image.open(request.image) as made, Image.open("assets/examples/the-white-ball-moves-up.png") as own:
        assert made.tobytes() == own.convert("RGB").tobytes()


def test_a_model_that_is_removed_between_two_readings_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalogue, "names", ("demo", "gone"))
    catalogue = Catalogue("demo")
    service = JobService(tmp_path / "outputs", StagedEngine())
    actions = Actions(service, catalogue)
    assert list(catalogue.infos) == ["demo"]
    options = actions.form_models("demo", "inverted")["markup"]["in-model"]
    assert "demo" in options
    assert "gone" not in options
    models = catalogue.infos
    monkeypatch.setattr(Catalogue, "infos", models)
    monkeypatch.setattr(Catalogue, "info", find_gone)  # it goes while the list is made
    assert [one["model"] for one in ModelPresenter(service, catalogue).describe_all()["models"]] == ["demo"]


def find_gone(_: Catalogue, name: str) -> ModelInfo:
    return find_model(f"no {name}")

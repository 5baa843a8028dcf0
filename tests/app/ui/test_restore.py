"""Tests of the settings that come back into the form, without a browser."""

import contextlib
import json
import threading
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.jobs.history import History
from app.jobs.service import JobService
from app.ui.catalogue import Catalogue
from app.ui.form import settings as form
from app.ui.form.actions import Actions
from app.ui.form.endpoints import FormCalls
from app.ui.form.settings import Extras, Restored, RestoredForm
from app.ui.pictures import Upload, uploaded
from app.ui.planner import Planner
from diffusers_helper.errors import InputError
from diffusers_helper.models.registry import find_model
from diffusers_helper.provenance.lineage import Span
from diffusers_helper.provenance.recipe import Recipe
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import TIMEOUT
from tests.support.pages import write_photo
from tests.support.staged_engine import StagedEngine

DEMO = find_model("demo")
CATALOGUE = Catalogue()
CALLS = FormCalls(JobService(Path("unused")), CATALOGUE)
SPAN = Span(1, {"prompt": "before", "seed": 3})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "uploads").mkdir()
    return tmp_path


def upload(folder: Path, name: str, content: bytes) -> Upload:
    path = folder / "uploads" / name
    path.write_bytes(content)
    return Upload(path=f"uploads/{name}")


def filled(reported: RestoredForm, **kept: object) -> dict[str, Any]:
    """Return the form's values for what an endpoint has returned."""
    answer = Actions(JobService(Path("unused")), CATALOGUE).form_fill(reported["text"], json.dumps(kept))
    return {**answer.get("values", {}), "notice": answer.get("notice")}


def recipe(**settings: object) -> str:
    return json.dumps({"recipe": 1, "settings": settings, "earlier": [], "vae": []})


def test_a_recipe_brings_every_setting_and_its_picture(folder: Path) -> None:
    photo = write_photo(folder / "photo.png").read_bytes()
    given_settings = {
        "prompt": "赤い ball", "negative": "–", "seconds": 3.6, "seed": 9, "steps": 12, "mode": "forward",
        "resolution": 192, "guidance": 6.0, "cfg": 2.0, "cfg_rescale": 0.5, "crf": 20, "sampler": "euler",
        "model": "demo", "weight_dtype": "fp16", "vae_tile": 128, "vae_precision": "fp32", "vae_chunk": 2,
        "attention": "sliced",
    }  # fmt: skip
    found = Recipe(given_settings, (SPAN,), pictures={"image": photo})
    reported = Restored.of_recipe(found, "a.mp4", CATALOGUE).to_dict()
    assert uploaded(Upload(path=reported["pictures"]["image"])).read_bytes() == photo
    values = filled(reported, prompt="other", steps=99, random_seed=True, variants=7)
    request = form.to_request({**values, "image": "x"}, DEMO, Planner())
    for name in [name for name in request if name not in GenerationRequest.__dataclass_fields__]:
        del request[name]  # the markup around the form
    made = GenerationRequest.from_dict(request)
    assert {name: getattr(made, name) for name in given_settings} == given_settings
    assert (values["random_seed"], values["variants"]) == (False, 1)
    assert Extras.from_text(values["extras"]).spans == (SPAN,)
    assert "The first section is made with the settings" in Extras.from_text(values["extras"]).summary


def test_only_uploads_are_read(folder: Path) -> None:
    outside = folder / "request.json"
    outside.write_text(recipe(prompt="secret"))
    inside = f"{folder}/uploads/../request.json"
    with pytest.raises(InputError):
        CALLS.recipe_read(upload(folder, "a.json", b"{}"), "a.json")
    for path in (str(outside), inside, "uploads/../request.json", "uploads/\0", "uploads/", ""):
        with pytest.raises(InputError):
            CALLS.recipe_read(Upload(path=path))


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
parts = st.sampled_from(["name", "settings", "extras", "is_whole", "notices"])


@given(restored=st.dictionaries(parts, anything) | anything, kept=anything)
def test_whatever_a_browser_sends_fills_the_form_or_is_refused(restored: Any, kept: Any) -> None:
    actions = Actions(JobService(Path("unused")), CATALOGUE)
    with contextlib.suppress(InputError):
        values = actions.form_fill(json.dumps(restored), json.dumps(kept))["values"]
        usable = {name: value for name, value in values.items() if name in form.PAGE_SETTINGS}
        GenerationRequest.from_dict(form.to_request(usable, DEMO, Planner()) | {"image": "x"})


def test_a_press_goes_on_with_its_job_whose_server_died_before_it_was_in_the_list(folder: Path) -> None:
    service = JobService(folder / "outputs", StagedEngine())
    actions = Actions(service, CATALOGUE)
    photo = {"path": str(write_photo(folder / "uploads" / "photo.png"))}
    values = form.defaults(DEMO, Planner()) | {"model": "demo", "prompt": "a ball", "image": photo}
    press = token_hex(8)
    actions.form_start(press, values, False)
    (job,) = service.history.made_by(press)
    with service.queue.store.change() as database:  # as if the server had died before the row was written
        database.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
    service.queue.rebuild()
    assert service.job(job.id).state == "paused"
    actions.form_start(press, values, False)
    assert [(made.id, made.state) for made in service.history.made_by(press)] == [(job.id, "queued")]
    service.queue.pause(job.id)  # by the user, whom the same press does not overrule
    actions.form_start(press, values, False)
    assert [(made.id, made.state) for made in service.history.made_by(press)] == [(job.id, "paused")]


def test_one_press_that_comes_twice_at_once_makes_one_video(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = JobService(folder / "outputs", StagedEngine())
    actions, arrived = Actions(service, CATALOGUE), threading.Event()
    submit, made_by = Catalogue.submit, History.made_by
    photo = {"path": str(write_photo(folder / "uploads" / "photo.png"))}
    values = form.defaults(DEMO, Planner()) | {"model": "demo", "prompt": "a ball", "image": photo}
    press = token_hex(8)

    def slowly(*given: Any, **named: Any) -> Any:
        """Make the job while the second press has the time to look for it, unless it waits for the first."""
        monkeypatch.setattr(Catalogue, "submit", submit)
        monkeypatch.setattr(History, "made_by", lambda *asked: (made_by(*asked), arrived.set())[0])
        second.start()
        arrived.wait(0.5)
        return submit(*given, **named)

    second = threading.Thread(target=actions.form_start, args=(press, values, False))
    monkeypatch.setattr(Catalogue, "submit", slowly)
    actions.form_start(press, values, False)
    second.join(TIMEOUT)
    assert [job.id for job in service.history.made_by(press)] == [job.id for job in service.jobs()]
    assert len(service.jobs()) == 1

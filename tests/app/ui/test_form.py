"""Tests of the form's values and of what the page says about them, without a browser."""

import json
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
from app.ui.form.describe import Describer
from app.ui.models.present import ModelPresenter
from app.ui.pictures import Size, crop_of
from app.ui.planner import Planner
from diffusers_helper.conditions.picture_file import fit_picture
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


def test_the_time_is_judged_by_the_last_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    engine = StagedEngine()
    service = JobService(tmp_path / "outputs", engine)
    describer = Describer(service, Catalogue())
    photo = {"path": str(write_photo(tmp_path / "photo.png"))}
    values = form.defaults(DEMO, PLANNER) | {"model": "demo", "image": photo}
    service.start()
    try:
        engine.go(100)
        Actions(service, Catalogue()).form_example("demo", 0, True)
        (job,) = service.jobs()
        assert [item for item in service.follow(job.id) if item][-1][1].is_final
        assert "judging by this machine’s last job." in describer.describe(values)["markup"]["length"]
    finally:
        service.stop()


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

"""Tests of the choice of the library that multiplies matrices."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cache.trial import try_candidates
from diffusers_helper.attention.backends import LIBRARIES
from diffusers_helper.attention.blas import preferred_library
from diffusers_helper.attention.trial import blas_work
from diffusers_helper.events import Event, StageStarted, Warned
from diffusers_helper.job.setup import open_job
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.routes import BLAS, Route, fastest
from diffusers_helper.pipeline import generate
from diffusers_helper.provenance.recipe import read_recipe
from tests.diffusers_helper.attention.test_choice import Tried, radeon
from tests.diffusers_helper.attention.test_choice import result as measured
from tests.support.making import Stop, load_tiny, tiny_request

__all__ = ["radeon"]


@pytest.mark.parametrize(
    ("milliseconds", "errors", "expected"),
    [
        ({"default": 1.0, "cublas": 1.2, "cublaslt": 0.8}, {}, "cublaslt"),
        ({"default": 1.0, "cublaslt": 0.95}, {}, "default"),  # as noise may be
        ({"default": 1.0, "cublaslt": 0.5}, {"cublaslt": 0.02}, "default"),
        ({"default": 9.0, "cublaslt": 1.0, "ck": 0.5}, {}, "ck"),
        ({"cublas": 2.0}, {}, "cublas"),
        ({}, {}, "default"),
    ],
)
def test_the_fastest_right_library_is_taken(
    milliseconds: dict[str, float], errors: dict[str, float], expected: str
) -> None:
    assert fastest(BLAS, Route(measured=milliseconds, errors=errors), 0.01) == expected


def test_the_trial_measures_what_torch_has_and_leaves_it_as_it_was() -> None:
    prefer: Any = torch.backends.cuda.preferred_blas_library
    before = prefer()
    work = partial(blas_work, 2, 40, 16, "bfloat16", device=torch.device("cpu"))
    plain, other, missing = try_candidates([(work, ["default", "ck", "cublaslt"])])
    for tried in (plain, other):
        assert 1e-3 < tried["error"] < 1e-2
    assert "not been compiled with cuBLASLt" in missing["failed"]
    assert prefer() == before
    for context in (preferred_library("ck"), work().prepared("ck")):
        with context:
            assert str(prefer()) == "_BlasBackend.Ck"
    assert prefer() == before


@pytest.mark.usefixtures("radeon")
def test_a_job_keeps_the_library_with_which_it_began_where_this_card_has_it(
    deep_models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Tried({name: measured(value, 0.001) for name, value in {"default": 2.0, "ck": 1.0}.items()})
    local, folder = Local(folder=tmp_path, try_candidates=tried), tmp_path / "job"

    def library(**settings: Any) -> str:
        request = tiny_request(small_scene, attention="native")
        return open_job(request, deep_models, folder=folder, **settings).memory.plans.blas

    assert library(local=local) == "ck"
    assert (folder / "blas").read_text() == "ck"
    assert library(resume_from=folder) == "ck"
    monkeypatch.setitem(LIBRARIES, "rocm", ("default",))
    events = list[Event]()
    assert library(resume_from=folder, on_event=events.append) == "default"
    lines = [event.message for event in events if isinstance(event, Warned)]
    assert lines[0].startswith("This video was begun with ck and goes on with PyTorch alone.")
    assert (folder / "blas").read_text() == "default"


def test_the_library_is_in_force_during_a_job_and_in_its_record(
    tiny_model: Path, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefer: Any = torch.backends.cuda.preferred_blas_library
    before, observed, models, request = prefer(), set[str](), load_tiny(tiny_model), tiny_request(small_scene)

    def stop(event: Event) -> None:
        if isinstance(event, StageStarted):
            raise Stop

    with pytest.raises(Stop):
        generate(request, models, folder=tmp_path, on_event=stop)
    (tmp_path / "blas").write_text("ck")
    monkeypatch.setitem(LIBRARIES, "cpu", ("ck",))

    def look(event: Event) -> None:
        if isinstance(event, StageStarted):
            observed.add(str(prefer()))

    result = generate(request, models, resume_from=tmp_path, on_event=look)
    assert observed == {"_BlasBackend.Ck"}
    assert prefer() == before
    assert read_recipe(result.video).made_with["blas"] == "ck"

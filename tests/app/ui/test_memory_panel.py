"""Tests of what the form says about memory, without a browser, on one card and on a machine without any."""

import re
from html import escape
from importlib import metadata
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from app.jobs.service import JobService
from app.machine import machine_of_card
from app.ui.catalogue import Catalogue
from app.ui.errors import page_error
from app.ui.form import settings as form
from app.ui.form.actions import Actions
from app.ui.form.describe import Describer
from app.ui.form.memory_view import report
from app.ui.live.words import memory_of
from app.ui.planner import Planner
from diffusers_helper.machine.local import DiskSpeeds, Local, store_kernel
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.models.registry import find_model
from diffusers_helper.planning.budget import DoesNotFit
from diffusers_helper.planning.notes import FORGET
from diffusers_helper.planning.profiles import Machine, profile_for
from diffusers_helper.planning.smaller_plans import level_key
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from tests.support.pages import write_photo
from tests.support.staged_engine import StagedEngine

RADEON = Planner(profile_for(machine_of_card("gfx1100:24"), {}))
COMPUTER = Planner(profile_for(Machine("cpu", "", "CPU", 32 * GB), {}))
SHAPE = (640, 640)


@pytest.fixture(autouse=True)
def enough_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ui.planner.host_memory", lambda: HostMemory(64 * GB, 60 * GB, 0, 0))


def reported(planner: Planner, model: str = "framepack-i2v", **settings: Any) -> tuple[str, str]:
    """Return state and text of the panel."""
    info = find_model(model)
    request = GenerationRequest(image="x", model=model, mode=info.modes[0], **settings)
    state, markup = report(planner, request, info, SHAPE if model != "demo" else (128, 128))
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", markup))
    return state, text.replace("&#x27;", "'")


def peak_in(state: str) -> float:
    return float(state.removeprefix("fits, peak ").removesuffix(" GB"))


def test_what_does_not_fit_is_refused_before_it_is_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr("app.ui.catalogue.absence_of", lambda _: None)  # as if its weights were here
    service = JobService(tmp_path / "outputs", StagedEngine())
    catalogue = Catalogue(planner=RADEON)
    actions = Actions(service, catalogue)
    info = find_model("framepack-i2v")
    photo = {"path": str(write_photo(tmp_path / "photo.png"))}
    values = form.defaults(info, RADEON) | {"model": info.name, "image": photo, "prompt": "a ball"}
    with pytest.raises(DoesNotFit) as refusal:
        actions.form_start(token_hex(8), values | {"vram_cap_gb": 3.5}, False)
    assert refusal.value.setting == "vram_cap_gb"
    said = Describer(service, catalogue).describe(values | {"vram_cap_gb": 3.5})["markup"]["memory-plan"]
    assert escape(page_error(refusal.value)[0]) in said
    with pytest.raises(DoesNotFit):
        catalogue.submit(service, {"image": photo["path"], "model": info.name, "vram_cap_gb": 3.5})
    assert service.jobs() == []
    assert actions.form_start(token_hex(8), values, False) == ""
    (job,) = service.jobs()
    assert (job.request.vram_cap_gb, job.request.preserved_gb) == (None, None)
    actions.form_start(token_hex(8), values | {"preserved_gb": 0, "vram_cap_gb": 12.5}, False)
    assert (service.jobs()[0].request.vram_cap_gb, service.jobs()[0].request.preserved_gb) == (12.5, 0)


def test_planning_again_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, info = Planner(COMPUTER.profile), find_model("demo")
    first = planner.plan(GenerationRequest(image="x"), info, (128, 128))
    with pytest.raises(DoesNotFit):  # which looks for a resolution that fits
        planner.plan(GenerationRequest(image="x", vram_cap_gb=0.01), info, (128, 128))
    monkeypatch.setattr(
        "diffusers_helper.models.sizes.count_values",
        lambda *_: pytest.fail("the model's files were read again"),
    )
    with pytest.raises(DoesNotFit):
        planner.plan(GenerationRequest(image="x", vram_cap_gb=0.01), info, (128, 128))
    assert first.job.keep_all_resident


def test_a_shortage_that_jobs_learned_from_is_in_the_plan_and_can_be_forgotten(tmp_path: Path) -> None:
    planner = Planner(RADEON.profile, local=Local(folder=tmp_path))
    before = reported(planner, preserved_gb=0)
    info = find_model("framepack-i2v")
    request = GenerationRequest(image="x", model=info.name)
    planner.local.smaller_plans.write(level_key(request, info, planner.profile, *SHAPE), {"weights": 1})
    state, text = reported(planner, preserved_gb=0)
    assert peak_in(state) < peak_in(before[0])
    assert "Memory ran out on this card before, so the plan is smaller than it could be:" in text
    assert f"`{FORGET}` discards this." in text
    planner.local.smaller_plans.forget()
    assert reported(planner, preserved_gb=0) == before


def test_what_doctor_found_while_the_page_is_up_changes_the_plan(tmp_path: Path) -> None:
    planner = Planner(RADEON.profile, local=Local(folder=tmp_path))
    assert reported(planner)[0].startswith("fits")
    kernel = "_scaled_dot_product_attention_math"
    store_kernel(planner.local.kernels, "gfx1100", metadata.version("torch"), kernel)
    assert "Attention is computed in slices" in str(reported(planner))
    assert reported(planner, attention="native")[0] == "does not fit"


def test_where_main_memory_is_short_the_page_says_what_a_step_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ui.planner.host_memory", lambda: HostMemory(32 * GB, 8 * GB, 0, 0))
    file = tmp_path / "weights.safetensors"
    monkeypatch.setattr("diffusers_helper.planning.video.weights_file", lambda info: file)
    monkeypatch.setattr(DiskSpeeds, "ask", lambda _, asked: 2.0 * GB if asked == file else None)
    text = reported(Planner(RADEON.profile, local=Local(folder=tmp_path / "cache")))[1]
    assert (
        "Only 8 GB of main memory are free for 22.3 GB of weights to stream, so 4.4 GB are preserved" in text
    )
    assert "8.4 GB of streamed weights do not fit into 8 GB of free main memory" in text
    assert "(about 4.2 s per step)" in text


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"stages": [1]}'])
def test_a_record_of_no_use_is_left_out(tmp_path: Path, text: str) -> None:
    file = tmp_path / "memory.json"
    file.write_text(text)
    assert memory_of(file) is None

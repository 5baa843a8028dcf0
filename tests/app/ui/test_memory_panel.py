"""Tests of what the form says about memory, without a browser, on one card and on a machine without any."""

import json
import re
from html import escape, unescape
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
from diffusers_helper.machine import sysfs
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
from tests.support.staged_engine import MEASURED, StagedEngine, memory_record

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


def test_the_defaults_are_those_of_the_machine() -> None:
    assert RADEON.defaults == {"vram_cap_gb": 20.0, "preserved_gb": 18.0, "vae_tile": 256}
    assert (RADEON.max_gb, COMPUTER.max_gb) == (24.0, 32.0)
    assert COMPUTER.defaults == {"vram_cap_gb": 28.0, "preserved_gb": 0.0, "vae_tile": 256}
    assert RADEON.changed_memory({"vram_cap_gb": 20, "preserved_gb": 18.0}) == {
        "vram_cap_gb": None,
        "preserved_gb": None,
    }
    assert RADEON.changed_memory({"vram_cap_gb": 20.5, "preserved_gb": 0}) == {
        "vram_cap_gb": 20.5,
        "preserved_gb": 0,
    }
    assert RADEON.changed_memory({"seconds": 5}) == {}


def test_a_plan_that_fits_says_what_it_costs() -> None:
    state, text = reported(RADEON)
    assert 4 < peak_in(state) < 8
    peak = state.removeprefix("fits, peak ").removesuffix(" GB")
    assert (
        f"Fits: peak {peak} of 20 GB. 58 of 60 blocks of the transformer are streamed, 22.3 GB per step: "
        "about 1.9 s, limited by main memory (assumed), while the card computes." in text
    )
    assert "cap 20 " in text
    assert "no GPU" not in text
    for stage in (
        "Text encoder",
        "Second text encoder",
        "Picture encoder",
        "Vision encoder",
        "Denoising",
        "Decoding",
    ):
        assert stage in text
    # With real guidance, a step runs the transformer twice.
    assert "44.6 GB per step" in reported(RADEON, cfg=2.0)[1]


def test_the_set_up_of_the_card_is_said_or_offered() -> None:
    best = (
        "This is the recommended set-up for this card. A step computes for longer than it copies: about 7.8 s"
    )
    assert best in reported(RADEON)[1]
    offer = (
        "Recommended for this card: FramePack I2V at 640 pixels, weights as they are stored, 18 GB preserved."
    )
    for other in ({"preserved_gb": 4.0}, {"resolution": 512}, {"weight_dtype": "int8"}):
        text = reported(RADEON, **other)[1]
        assert best not in text
        assert offer in text
    info = find_model("framepack-i2v")
    request = GenerationRequest(image="x", model=info.name, mode="inverted", resolution=512)
    button = re.findall(r'data-recommended="([^"]*)"', report(RADEON, request, info, SHAPE)[1])
    settings = {"weight_dtype": "default", "preserved_gb": None, "resolution": None}
    assert [json.loads(unescape(one)) for one in button] == [settings]
    # Without a card there is no set-up to choose, and nothing to explain where nothing is streamed.
    assert "ecommended" not in reported(COMPUTER, "demo", preserved_gb=1)[1] + reported(RADEON, "demo")[1]


def test_a_request_that_does_not_fit_is_offered_the_set_up_that_does() -> None:
    state, text = reported(Planner(profile_for(machine_of_card("gfx103x:16"), {})), attention="native")
    assert state == "does not fit"
    assert "Recommended for this card: FramePack I2V at 384 pixels" in text


def test_a_default_gives_way_to_a_small_cap_and_says_so() -> None:
    assert "8 of 10 GB are preserved, as docs/amd-memory.md sets it" in reported(RADEON, vram_cap_gb=10)[1]
    small = Planner(profile_for(machine_of_card("gfx1100:8"), {}))
    assert (small.defaults["vram_cap_gb"], small.defaults["preserved_gb"]) == (4.5, 2.5)
    state, text = reported(small)
    assert state == "fits, peak 5.1 GB"
    assert "The default cap of 4.5 GB is too small for this video, which gets 5.1 GB." in text


def test_without_a_gpu_it_says_what_the_cap_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs, "computes_bf16", lambda: True)
    state, text = reported(Planner(COMPUTER.profile), "demo")
    assert state == "fits, peak 0.072 GB"
    assert "Everything fits at once and stays on the device." in text
    assert "This machine has no GPU. The plan is for main memory" in text


def test_what_does_not_fit_is_said_with_the_cap_that_would() -> None:
    state, text = reported(RADEON, vram_cap_gb=4)
    assert state == "does not fit"
    least = re.findall(r"Set VRAM Cap to ([\d.]+) or more\.", text)[0]
    assert "Or set Resolution to 416 or less." in text
    assert reported(RADEON, vram_cap_gb=float(least))[0].startswith("fits, peak ")
    state, text = reported(RADEON, preserved_gb=19.9)
    assert state.startswith("fits, peak ")
    assert "Of the 19.9 GB to preserve, 19 GB are preserved under the cap of 20 GB" in text
    small = Planner(profile_for(machine_of_card("gfx1100:4"), {}))
    state, text = reported(small)
    assert state == "does not fit"
    assert "; this device has 4 GB. No smaller Resolution fits. Choose another model." in text


def test_of_a_card_whose_size_is_unknown_nothing_is_planned() -> None:
    planner = Planner(profile_for(Machine("cuda", "", "NVIDIA GPU", 0), {}))
    assert reported(planner)[0] == "planned at the start"
    planner.check(GenerationRequest(image="x", model="framepack-i2v"), find_model("framepack-i2v"))
    assert reported(planner, vram_cap_gb=12)[0].startswith("fits, peak ")


def test_the_description_follows_the_memory_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    catalogue = Catalogue(planner=RADEON)
    describer = Describer(JobService(tmp_path / "outputs"), catalogue)
    info = find_model("framepack-i2v")
    photo = {"path": str(write_photo(tmp_path / "photo.png"))}
    values = form.defaults(info, RADEON) | {"model": info.name, "image": photo}
    assert describer.describe(values)["facts"]["defaults"] == RADEON.defaults
    large, small = (
        describer.describe(values | {"resolution": side})["facts"]["memory"] for side in (640, 192)
    )
    assert peak_in(small) < peak_in(large)
    assert describer.describe(values | {"vram_cap_gb": 3.5})["facts"]["memory"] == "does not fit"
    broken = describer.describe(values | {"vram_cap_gb": 0})
    assert broken["facts"]["memory"] == ""
    assert "VRAM Cap is 0" in broken["markup"]["memory-plan"]
    assert describer.describe(values | {"steps": "<b>"})["markup"]["memory-plan"] == ""


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


def test_a_jobs_record_becomes_a_table(tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    assert memory_of(file) is None
    file.write_text(json.dumps(memory_record(2)))
    shown = memory_of(file)
    assert shown["rows"] == [
        ["Text encoder", "3", "2", "–"], ["Denoising", "6", "5", "11"], ["Decoding", "7", "6.5", "–"],
    ]  # fmt: skip
    assert (shown["say"], shown["isNear"]) == ("peak 6.5 of 20 GB", False)
    file.write_text(json.dumps(memory_record(2) | {"cap_bytes": MEASURED["decode"]}))
    near = memory_of(file)
    assert near["isNear"]


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"stages": [1]}'])
def test_a_record_of_no_use_is_left_out(tmp_path: Path, text: str) -> None:
    file = tmp_path / "memory.json"
    file.write_text(text)
    assert memory_of(file) is None

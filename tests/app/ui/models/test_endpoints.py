"""Tests of the endpoints of the models, called as functions, with a local double of the hub."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.pace import Pace, PaceBook
from app.jobs.service import JobService
from app.machine import machine_of_card
from app.ui.catalogue import Catalogue
from app.ui.models.endpoints import ModelCalls
from app.ui.planner import Planner
from diffusers_helper.errors import InputError
from diffusers_helper.machine import sysfs
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.models import downloads
from diffusers_helper.models.added import ADDED_MODELS, AddedModel
from diffusers_helper.models.downloads import NotHere, bytes_in
from diffusers_helper.models.registry import find_model, model_names
from diffusers_helper.planning.profiles import profile_for
from diffusers_helper.units import GB, about
from tests.support.hub import LIGHT_BYTES, Hub
from tests.support.jobs import wait_until
from tests.support.published import part_folder
from tests.support.staged_engine import StagedEngine
from tests.support.whole_answers import whole

F1 = "framepack-f1"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("app.ui.planner.host_memory", lambda: HostMemory(64 * GB, 60 * GB, 0, 0))
    service = JobService(tmp_path / "outputs", StagedEngine())
    service.start()
    yield service
    service.stop()


def calls_of(service: JobService, machine: str = "cpu:24", model: str = "demo") -> ModelCalls:
    planner = Planner(profile_for(machine_of_card(machine), {}))
    return ModelCalls(service, Catalogue.starting_with(model, planner))


def one(calls: ModelCalls, name: str = F1) -> dict[str, Any]:
    return next(model for model in calls.models_list()["models"] if model["model"] == name)


def test_they_say_how_long_a_video_takes_once_that_is_known(
    service: JobService, lit_hub: tuple[Hub, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PaceBook, "pace", lambda *_: Pace(1.0, 0.0, 10.0, 0.0))
    demo = one(calls_of(service), "demo")  # 4 sections of 4 steps of 128 x 128 pixels
    assert demo["facts"].endswith("a video of 5 s takes a few seconds")
    assert demo["needs"][-1] == "A video of 5 seconds takes a few seconds on this machine."
    monkeypatch.setattr(PaceBook, "pace", lambda *_: Pace(0.0, 0.0, 60 / 0.496**2, 0.0))
    for name, passes in (("helios-distilled", 12 + 3 * 6), ("helios-base", 4 * 50 * 2)):
        assert f"a video of 5 s takes {about(60 * passes)}" in one(calls_of(service), name)["facts"]


def test_each_machine_is_told_what_a_model_needs(
    service: JobService, lit_hub: tuple[Hub, Path], monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    monkeypatch.setattr("app.ui.models.present.host_memory", lambda: HostMemory(32 * GB, 20 * GB, 0, 0))
    monkeypatch.setattr(sysfs, "computes_bf16", lambda: True)
    needs = {
        machine: {
            model["model"]: [model["facts"], *model["needs"]]
            for model in calls_of(service, machine).models_list()["models"]
            if model["model"] in ("demo", F1, "wan-a14b-fast")
        }
        for machine in ("cpu:24", "gfx1100:24", "gfx1032:2", "gfx1151:96")
    }
    assert whole(needs) == snapshot


@pytest.mark.slow
def test_a_model_is_got_checked_and_removed(service: JobService, lit_hub: tuple[Hub, Path]) -> None:
    _, cache = lit_hub
    calls = calls_of(service)
    assert calls.models_get(F1)["state"] == "getting"
    wait_until(lambda: one(calls)["state"] == "complete")
    got = one(calls)
    assert got["here_bytes"] == 5 * LIGHT_BYTES + 11 * len("{}")
    assert got["removal"]["num_bytes"] == got["here_bytes"]
    assert one(calls, "framepack-i2v")["state"] == "incomplete"  # has the shared parts
    assert one(calls, "framepack-i2v")["removal"] is None
    assert calls.models_verify(F1)["state"] == "verifying"
    wait_until(lambda: one(calls)["problems"] is not None)
    removed = calls.models_remove(F1)
    assert removed["removed_bytes"] == got["here_bytes"]
    assert one(calls)["state"] == "missing"
    assert one(calls)["problems"] is None
    assert not part_folder(cache, find_model(F1), "vae").exists()
    for name, error in (("demo", "only downloaded models"), ("/etc", "expected one of")):
        with pytest.raises(InputError, match=error):
            calls.models_remove(name)


def test_a_download_that_is_given_up_keeps_its_bytes_until_the_model_is_removed(
    service: JobService, lit_hub: tuple[Hub, Path]
) -> None:
    hub, cache = lit_hub
    hub.gate.clear()
    calls, info = calls_of(service), find_model(F1)
    calls.models_get(F1)
    folder = part_folder(cache, info, "transformer")
    wait_until(lambda: any(file.stat().st_size >= 2**20 for file in folder.glob(".*.part")))
    assert calls.models_pause(F1)["state"] == "paused"
    assert calls.models_cancel(F1)["state"] == "incomplete"
    calls.models_get(F1)
    removed = calls.models_remove(F1)
    assert removed["removed_bytes"] >= 2**20
    assert one(calls)["state"] == "missing"
    assert not bytes_in(info.components["transformer"].folder)


def test_an_added_model_comes_and_goes_while_it_is_downloaded(
    service: JobService,
    lit_hub: tuple[Hub, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    photo: Path,
) -> None:
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "models.json")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(photo.parent))
    hub, _ = lit_hub
    hub.gate.clear()
    calls = calls_of(service)
    for name in ("mine", "other"):
        ADDED_MODELS.add(AddedModel(name, name, F1, {}))
        assert one(calls, name)["is_added"]
        calls.models_get(name)
    removed = calls.models_remove("mine")
    assert (removed["removed_bytes"], ADDED_MODELS.find("mine")) == (0, None)
    ADDED_MODELS.remove("other")
    assert service.downloads.share == ""
    with pytest.raises(InputError, match="expected one of demo, framepack-i2v, framepack-f1"):
        calls_of(service)._catalogue.submit(service, {"image": str(photo), "model": "mine"})
    hub.gate.set()
    assert calls.models_get(F1)["state"] == "getting"
    wait_until(lambda: one(calls)["state"] == "complete")


def test_a_page_that_began_with_a_removed_model_offers_the_default(
    service: JobService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ADDED_MODELS, "file", tmp_path / "data" / "models.json")
    assert ADDED_MODELS.revision == ""
    ADDED_MODELS.add(AddedModel("mine", "Mine", "demo", {}))
    before = ADDED_MODELS.revision
    catalogue = Catalogue.starting_with("mine", Planner())
    assert (catalogue.preselected, catalogue.infos["mine"].title) == ("mine", "Mine")
    ADDED_MODELS.remove("mine")
    assert ADDED_MODELS.revision not in ("", before)
    assert catalogue.preselected == "demo"
    assert catalogue.names == model_names()


def test_what_has_no_room_or_is_in_use_is_refused(
    service: JobService, lit_hub: tuple[Hub, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(service)
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30))
    assert one(calls)["room"].startswith("There is not enough space: 39.4 GB to download, and 1 GB free.")
    with pytest.raises(NotHere):
        calls.models_get(F1)
    with pytest.raises(InputError, match="lies on this machine"):
        calls.models_get("demo")


def test_the_plans_by_card_are_told(service: JobService, lit_hub: tuple[Hub, Path]) -> None:
    plans = calls_of(service).models_plan("framepack-i2v")
    assert [plan["card_gb"] for plan in plans] == [8, 12, 16, 20, 24]
    assert plans[0]["default"]["resident_bytes"] < plans[-1]["default"]["resident_bytes"]
    assert plans[-1]["default"]["streamed_bytes"] > plans[-1]["fewest_copies"]["streamed_bytes"]
    with pytest.raises(InputError, match="weight_dtype is 'fp4'"):
        calls_of(service).models_plan("framepack-i2v", "fp4")
    formats = calls_of(service).models_formats("framepack-i2v")
    assert [card["card_gb"] for card in formats[0]["cards"]] == [8, 12, 16, 20, 24]
    assert formats[0]["formats"] == ("as stored", "bf16", "fp16")


def test_a_job_that_waits_for_its_model_can_be_edited(
    service: JobService,
    lit_hub: tuple[Hub, Path],
    photo: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(photo.parent))
    hub, _ = lit_hub
    hub.gate.clear()
    catalogue = Catalogue(planner=Planner(profile_for(machine_of_card("gfx1100:24"), {})))
    settings: dict[str, object] = {"image": str(photo), "prompt": "before", "model": F1}
    with pytest.raises(NotHere):
        catalogue.submit(service, settings)
    job = catalogue.submit(service, settings, may_download=True)
    assert service.downloads.progress(F1).activity == "getting"
    service.downloads.pause(F1)
    assert catalogue.edit(service, job.id, settings | {"prompt": "after"}).request.prompt == "after"
    assert service.downloads.progress(F1).activity == "paused"
    with pytest.raises(NotHere):
        catalogue.edit(service, job.id, settings | {"model": "framepack-i2v"})

"""Tests of a job over two cards, of which the second does all but sampling. Both are in main memory here."""

import json
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import InputError
from diffusers_helper.events import Finished, Warned
from diffusers_helper.job.memory import JobMemory, MemoryPlans
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import Facts, Local
from diffusers_helper.memory.device import second_device
from diffusers_helper.memory.store import Store
from diffusers_helper.models.sizes import Weights
from diffusers_helper.planning.budget import Budget, Demand, DoesNotFit, JobPlan, Stage, plan_job
from diffusers_helper.planning.smaller_plans import PlanLevels
from diffusers_helper.request import GenerationRequest
from diffusers_helper.units import GB
from diffusers_helper.vae.engine import VideoPart
from tests.support.making import make, seconds_for, tiny_request

OTHERS = ["text", "text_2", "vae_encode", "vision", "decode"]


def plan_of(request: GenerationRequest, models: Models, local: Local) -> JobPlan:
    return MemoryPlans(request, models, 64, 64, local).plan


def helped_by(num_bytes: float) -> Local:
    return Local({"LONGTAKE_HELPER_CAP_GB": repr(num_bytes / GB)})


def loads(store: Store) -> list[str]:
    return [move.removeprefix("load ") for move in store.log if move.startswith("load ")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resident", "streamed"])
def test_two_cards_make_the_same_bytes_and_the_transformer_stays_on_the_first(
    kind: str, deep_models: Models, small_scene: Path, tmp_path: Path, stores: list[Store]
) -> None:
    request = tiny_request(small_scene, seconds=seconds_for(2))
    alone, _ = make(request, deep_models, tmp_path / "alone")
    demand = MemoryPlans(request, deep_models, 64, 64, Local()).levels.demands[0]
    cap = plan_of(request, deep_models, Local()).smallest_cap_bytes
    sample = next(stage for stage in demand.stages if stage.name == "sample")
    preserved = cap - sample.model.fixed_bytes if kind == "streamed" else 0
    request = replace(request, vram_cap_gb=cap / GB, preserved_gb=preserved / GB)
    local = helped_by(4 * cap)
    plan = plan_of(request, deep_models, local)
    assert plan.helper is not None
    assert [stage.stage for stage in plan.all_stages] == [stage.name for stage in demand.stages]
    assert [stage.stage for stage in plan.stages] == ["sample"]
    assert bool(plan.stage("sample").streamed_blocks) == (kind == "streamed")

    stores.clear()
    result, events = make(request, deep_models, tmp_path / "job", local=local)
    assert result.latents.equal(alone.latents)
    assert result.video.read_bytes() == alone.video.read_bytes()
    first, second = stores
    assert loads(first) == ["transformer"]
    assert loads(second) == ["text_encoder", "text_encoder_2", "vae", "image_encoder"]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert 0 < finished.peak_device_bytes == first.peak_bytes <= cap
    record = json.loads((tmp_path / "job" / "memory.json").read_text())
    assert [stage["stage"] for stage in record["stages"]] == ["sample", "sample"]
    assert [stage["stage"] for stage in record["helper"]["stages"]] == [*OTHERS, "decode"]
    assert 0 < record["helper"]["peak_device_bytes"] <= record["helper"]["cap_bytes"] == 4 * cap


@pytest.mark.slow
def test_a_shortage_on_the_second_card_leaves_the_job_to_the_first(
    deep_models: Models,
    small_scene: Path,
    tmp_path: Path,
    stores: list[Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = tiny_request(small_scene)
    cap = plan_of(request, deep_models, Local()).smallest_cap_bytes
    request = replace(request, vram_cap_gb=cap / GB)
    enter, is_short = Store.on_device, [True]

    def short_once(self: Store, stage: str, section: int | None) -> Any:
        if self is stores[1] and stage == "decode" and is_short.pop():
            raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 1.00 GiB.")
        return enter(self, stage, section)

    monkeypatch.setattr(Store, "on_device", short_once)
    result, events = make(request, deep_models, tmp_path / "job", local=helped_by(4 * cap))
    warned = " ".join(event.message for event in events if isinstance(event, Warned))
    assert "the second card no longer helps" in warned
    assert loads(stores[0]) == ["transformer", "vae"]
    assert result.frames == 37


BUDGET = Budget(total_bytes=1000, cap_bytes=1000, preserved_bytes=0, reserve_bytes=0)


def demands(*tiles: int) -> list[Demand]:
    """Return the needs of a job whose text encoder and transformer do not fit beside each other."""
    return [
        Demand(
            tile,
            (
                Stage("text", Weights("text_encoder", 700), 50),
                Stage("sample", Weights("transformer", 600), 100),
                Stage("decode", Weights("vae", 50), tile),
            ),
        )
        for tile in tiles
    ]


def test_the_second_card_is_left_out_where_it_would_not_pay() -> None:
    def helper(cap: int, budget: Budget = BUDGET, tiles: tuple[int, ...] = (400, 200)) -> JobPlan | None:
        there = Budget(total_bytes=cap, cap_bytes=cap, preserved_bytes=0, reserve_bytes=0)
        return plan_job(replace(budget, helper=there), demands(*tiles)).helper

    assert helper(2000) is not None
    assert helper(749) is None  # it cannot hold the text encoder
    assert helper(1000, tiles=(900, 200)) is not None
    assert helper(800, tiles=(900, 200)) is None  # it would decode in smaller tiles than the first
    assert helper(800, replace(BUDGET, cap_bytes=3000, total_bytes=3000)) is None  # all fits on the first
    small = plan_job(replace(BUDGET, helper=replace(BUDGET, cap_bytes=440)), demands(400)[:1])
    assert small.helper is None  # a text encoder of 700


def test_what_fits_on_neither_card_alone_fits_on_both() -> None:
    budget = replace(BUDGET, cap_bytes=720)
    with pytest.raises(DoesNotFit):
        plan_job(budget, demands(400))
    plan = plan_job(replace(budget, helper=replace(BUDGET, cap_bytes=760)), demands(400))
    assert (plan.peak_bytes, plan.helper.peak_bytes) == (700, 750)
    assert plan.keep_all_resident
    assert not plan.helper.keep_all_resident
    with pytest.raises(DoesNotFit):  # there is no smaller plan, and the first one stays in force
        PlanLevels(budget, demands(400), Facts(), "")


def test_a_process_that_sees_one_card_has_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert second_device(torch.device("cuda", 0)) == torch.device("cuda", 1)
    assert second_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(InputError, match="sees one card only"):
        second_device(torch.device("cuda", 0))


def test_what_both_cards_stream_is_the_use_of_the_job() -> None:
    memory = object.__new__(JobMemory)
    first, second = (cast(Any, SimpleNamespace(peak_bytes=3, bytes_streamed=size)) for size in (5, 7))
    memory.store, memory._stores = first, [first, second]
    plan = SimpleNamespace(budget=SimpleNamespace(cap_bytes=9), vae_tile_px=64)
    memory.plans = cast(Any, SimpleNamespace(plan=plan, levels=SimpleNamespace(retries=1)))
    assert memory.usage() == {
        "peak_device_bytes": 3, "cap_bytes": 9, "bytes_streamed": 12, "retries": 1, "vae_tile_px": 64,
    }  # fmt: skip


def test_both_cards_follow_the_plan_and_are_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, memory = list[str](), object.__new__(JobMemory)

    def card(name: str) -> Any:
        def note(move: str) -> Any:
            return lambda *values: moves.append(" ".join(map(str, (name, move, *values))))

        moved = {move: note(move) for move in ("clear", "flush", "follow")}
        return SimpleNamespace(
            **moved, device=SimpleNamespace(limit=note("limit"), empty_cache=note("empty"))
        )

    memory._stores = [card("first"), card("second")]
    levels = SimpleNamespace(demands=[SimpleNamespace(vae_tile_px=64)])
    plan = SimpleNamespace(vae_tile_px=64, of=lambda stage: f"the plan to {stage}")
    memory.plans = cast(Any, SimpleNamespace(plan=plan, levels=levels))
    monkeypatch.setattr(memory, "save", lambda: moves.append("save"))
    with memory:
        memory._apply_plan()
    assert moves == [
        "first flush worker-start", "second flush worker-start", f"first follow {plan}",
        "second follow the plan to decode", "save", "first clear", "second clear", "first empty",
        "first limit None", "second empty", "second limit None",
    ]  # fmt: skip
    moves.clear()
    with suppress(RuntimeError), memory:
        memory._empty_devices()
        raise RuntimeError
    assert moves[2:] == [
        "first clear", "first flush exception-cleanup", "second clear", "second flush exception-cleanup",
        "save", "first clear", "second clear", "first flush exception-cleanup", "first empty",
        "first limit None", "second flush exception-cleanup", "second empty", "second limit None",
    ]  # fmt: skip


def test_each_use_of_a_network_is_read_measured_and_told_as_it_has_to_be() -> None:
    told, here, memory = list[Any](), set[str](), object.__new__(JobMemory)
    models = {"text": "text_encoder", "text_2": "text_encoder_2", "vae_encode": "vae", "decode": "vae"}
    models |= {"sample": "transformer", "sample_low": "transformer_2"}

    def stage_plan(stage: str) -> Any:
        return SimpleNamespace(model=models[stage], streamed_blocks=(1,) if "sample" in stage else ())

    plan = SimpleNamespace(stage=stage_plan)
    plan.of = lambda stage: plan
    memory.plans = cast(Any, SimpleNamespace(
        plan=plan, models=SimpleNamespace(read=lambda name, *_: told.append(f"read {name}")),
        measure_copies=lambda name: told.append(f"measure {name}"),
        request=GenerationRequest(prompt="a ball"),
    ))  # fmt: skip
    device = SimpleNamespace()

    def on_device(*use: Any) -> Any:
        told.append(use)
        return nullcontext(nn.Module())

    store = SimpleNamespace(has=here.__contains__, device=device, on_device=on_device)
    report = SimpleNamespace(stage=lambda *use: told.append(("told", *use)), reading=None)
    memory._stores, memory._report, memory._cancel = [cast(Any, store)], cast(Any, report), CancelToken()
    memory._before_vae = lambda device: told.append("before the VAE")
    for stage in ("text", "text_2", "sample", "sample_low"):
        memory._on_device(stage, 1 if "sample" in stage else None)
        assert memory._stage == stage
    for task, part in (("encode", None), ("decode", VideoPart(1, 0)), ("decode", VideoPart(2, 9))):
        with memory.vae_on_device(cast(Any, task), part):
            here.add("vae")
    assert told == [
        "read text_encoder", ("told", "text", None), ("text", None),
        "read text_encoder_2", ("text_2", None),  # in events, two networks for one work are one stage
        "read transformer", "measure transformer", ("told", "sample", 1), ("sample", 1),
        "read transformer_2", "measure transformer_2", ("sample_low", 1),
        "before the VAE", "read vae", ("told", "vae_encode", None), ("vae_encode", None),
        ("told", "decode", 1), ("decode", 1), ("told", "decode", 2), ("decode", 2),
    ]  # fmt: skip

"""Tests of the automatic choice: kernels are tried in a process of their own, and the choice is kept."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from app.machine import machine_of_card
from app.trials import _end_of
from cache.trial import _temporary_mark
from cache.trial import try_candidates as try_here
from diffusers_helper.attention.backends import BACKENDS, LIBRARIES, candidate_backends
from diffusers_helper.attention.dispatch import attention_function
from diffusers_helper.attention.trial import attention_work
from diffusers_helper.errors import InputError
from diffusers_helper.events import Event, Finished, JobStarted, Warned
from diffusers_helper.job.plans import LATE, MemoryPlans
from diffusers_helper.job.setup import open_job
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import (
    Local,
    deviation_of,
    fastest_by_shape,
    shape_key,
    store_kernel,
    stored_kernel,
)
from diffusers_helper.machine.packages import version_of
from diffusers_helper.machine.routes import ATTENTION, BLOCK_WORK, KernelCase, Route, RouteStore, Task
from diffusers_helper.models.registry import find_model
from diffusers_helper.pipeline import generate
from diffusers_helper.planning.profiles import profile_for, profile_in_force
from diffusers_helper.planning.video import plan_video
from diffusers_helper.provenance.recipe import read_recipe
from diffusers_helper.request import ATTENTIONS, SETTINGS, GenerationRequest
from tests.support.attention_kernels import (
    ABORTS,
    HANGS,
    IS_KILLED,
    LOSES,
    RIGHT_IN_KITCHEN,
    WRONG,
    tried_in_processes,
    write_kernel,
)
from tests.support.making import Stop, load_tiny, make, outline, seconds_for, tiny_request

SHAPE = (2, 96, 16, "bfloat16", 2**20)
FLASH, MATH = "_scaled_dot_product_flash_attention", "_scaled_dot_product_attention_math"


def test_the_setting_has_every_way() -> None:
    assert SETTINGS["attention"].default == "auto"
    assert list(ATTENTIONS) == ["auto", *BACKENDS]
    assert candidate_backends()[0] == "native"
    assert {*candidate_backends()} <= {"native", "kitchen"}  # nothing else is installed where the tests run


@pytest.mark.slow
def test_a_bad_kernel_costs_only_itself(tmp_path: Path) -> None:
    write_kernel(tmp_path, "flash_attn", ABORTS)
    write_kernel(tmp_path, "sageattention", WRONG)
    write_kernel(tmp_path, "comfy_kitchen", RIGHT_IN_KITCHEN)
    names = ("triton", "sage", "native", "sliced", "kitchen", "aiter")
    route, results = tried_in_processes(tmp_path, names, SHAPE)
    assert tuple(results) == names
    assert route.deadly == {"triton": "its process ended with -6"}
    assert route.failed["sage"].startswith("its results differ by ")
    assert "diffusers cannot use" in route.failed["aiter"]
    assert "flash" in results["native"]["kernel"]
    assert 0 < route.errors["sliced"] <= route.errors["native"] < 0.01
    assert route.measured.keys() == {"native", "sliced", "kitchen"}


def test_a_kernel_that_gives_no_numbers_or_wrong_ones_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    last = torch.ones(96, 1, 1)
    last[-1] = 0
    factors: dict[str, Any] = {"flash": float("nan"), "sage": 1.2, "aiter": last, "native": 1.0}

    def attention(backend: str, limit_bytes: int) -> Any:
        whole = attention_function("native", limit_bytes)
        return lambda *inputs: whole(*inputs) * factors[backend]

    monkeypatch.setattr("diffusers_helper.attention.trial.attention_function", attention)
    work = partial(attention_work, *SHAPE, device=torch.device("cpu"))
    *wrong, right = try_here([(work, factors)])
    said = [trial["failed"].removeprefix("its results differ by ") for trial in wrong]
    assert said[:2] == ["nan of their size", "0.2 of their size"]
    assert len(said) == 3  # of which the last is wrong in its last row alone
    assert "failed" not in right
    monkeypatch.setattr("diffusers_helper.attention.trial.operation_of", lambda compute: MATH)
    (in_math,) = try_here([(work, ["native"])])
    assert "stores the scores of all tokens" in in_math["failed"]
    assert in_math["kernel"] == MATH


def test_a_kernel_that_hangs_is_ended_and_not_tried_again_unless_the_time_of_all_was_over(
    tmp_path: Path,
) -> None:
    write_kernel(tmp_path, "flash_attn", HANGS)
    route, results = tried_in_processes(tmp_path, ("triton",), SHAPE, all_seconds=1)
    assert (route, results) == (Route(), {})
    route, _ = tried_in_processes(tmp_path, ("triton",), SHAPE, seconds=1)
    assert route.deadly == {"triton": "it took more than 1 seconds"}


@pytest.mark.slow
def test_a_way_that_is_killed_may_be_tried_again_and_one_that_loses_the_card_harms_no_other(
    tmp_path: Path,
) -> None:
    write_kernel(tmp_path, "flash_attn", IS_KILLED)
    write_kernel(tmp_path, "sageattention", LOSES)
    route, results = tried_in_processes(tmp_path, ("triton", "sage", "native"), SHAPE)
    assert results["triton"] == {"failed": "its process ended with -9", "passes": True}
    assert route.failed == {"sage": "HIP error: an illegal memory access was encountered"}
    assert (route.deadly, route.measured.keys()) == ({}, {"native"})


OOM = "HIP out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of 16.00 GiB of which 2.00 GiB"


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (OOM.format("4.00"), True),  # another program has the rest
        (OOM.format("65.51"), False),
        ("HSA exception: MemoryRegion::BlockAllocator::alloc failed.", True),
        ("HIP error: an illegal memory access was encountered", False),
        ("no kernel image is available", False),
    ],
)
def test_a_lack_of_memory_passes_unless_the_card_is_too_small(text: str, passes: bool) -> None:
    assert _temporary_mark(RuntimeError(text)) == ({"passes": True} if passes else {})


@pytest.mark.parametrize(
    ("code", "errors", "passes"),
    [
        (-9, "", True), (-15, "", True), (-6, "", False), (-11, "", False), (1, "Traceback", False),
        (1, f"torch.OutOfMemoryError: {OOM.format('0.10')}", True),
        (-6, "HSA exception: MemoryRegion::BlockAllocator::alloc failed.", True),
    ],
)  # fmt: skip
def test_an_end_from_outside_or_for_lack_of_memory_passes(code: int, errors: str, passes: bool) -> None:
    end = _end_of(code, errors)
    assert end.is_transient == passes
    assert end.reason.startswith(f"its process ended with {code}")
    assert _end_of(0, errors).reason == ""


def result(milliseconds: float, error: float = 0.003) -> dict[str, Any]:
    return {"milliseconds": milliseconds, "error": error, "bytes": 0}


def fails(text: str, **marks: bool) -> dict[str, Any]:
    return {"failed": text, **marks}


def keep(local: Local, card: str, key: str, results: Mapping[str, Any], operation: str = ATTENTION) -> None:
    """Store results, as a trial does."""
    for candidate, found in results.items():
        with local.routes.trying(KernelCase(operation, card, key), candidate) as stored:
            stored.append(found)


BAD = fails("its results differ by 1 of their size")
BUSY = fails(OOM.format("4.00"), passes=True)
IN_MATH = fails(f"it runs {MATH}, which stores the scores of all tokens")
KEY = shape_key(24, 18400, 128, "bfloat16")


@pytest.mark.parametrize(
    ("results", "candidate"),
    [
        ({"native": result(1.0), "triton": result(0.95), "sage": BAD}, "native"),
        ({"native": result(1.0), "triton": result(0.8), "sage": BAD}, "triton"),
        ({"native": IN_MATH, "triton": result(2.0)}, "triton"),
        ({"native": IN_MATH, "sage": BAD}, "sliced"),
        ({"native": fails("SIGABRT", is_deadly=True)}, "sliced"),
    ],
)
def test_the_fastest_right_way_is_kept_for_card_software_and_shape(
    results: dict[str, Any], candidate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Local(folder=tmp_path)
    keep(local, "gfx1100", KEY, results)
    assert fastest_by_shape(local, ATTENTION, "gfx1100", 0.01) == {KEY: candidate}
    assert fastest_by_shape(local, ATTENTION, "gfx1030", 0.01) == {}
    assert fastest_by_shape(local, BLOCK_WORK, "gfx1100", 0.01) == {}
    assert shape_key(24, 18200, 128, "bfloat16") == KEY != shape_key(24, 18433, 128, "bfloat16")
    keep(local, "gfx1100", "another", {"native": result(1.0)})
    assert fastest_by_shape(local, ATTENTION, "gfx1100", 0.01) == {KEY: candidate, "another": "native"}
    for name in ("driver_version", "version_of"):
        with monkeypatch.context() as patch:
            patch.setattr(f"diffusers_helper.machine.routes.{name}", lambda _: "7.1")
            assert fastest_by_shape(local, ATTENTION, "gfx1100", 0.01) == {}


def test_a_person_chooses_how_far_results_may_differ(tmp_path: Path) -> None:
    local = Local(folder=tmp_path)
    keep(local, "gfx1201", KEY, {"native": result(1.0), "sage": result(0.5, error=0.0145)})
    assert deviation_of({}) == deviation_of({"LONGTAKE_ATTENTION_DEVIATION": "1"}) == 0.01
    assert fastest_by_shape(local, ATTENTION, "gfx1201", 0.01) == {KEY: "native"}
    wide = deviation_of({"LONGTAKE_ATTENTION_DEVIATION": "2"})
    assert fastest_by_shape(local, ATTENTION, "gfx1201", wide) == {KEY: "sage"}
    environ = {"LONGTAKE_ATTENTION_DEVIATION": "2"}
    assert profile_in_force(machine_of_card("gfx1200:16"), Local(environ, tmp_path)).backends == {}
    precise = shape_key(24, 18400, 128, "float32")
    keep(local, "gfx1030", precise, {"native": result(1.0, error=1e-4), "triton": result(0.5, error=1e-5)})
    assert fastest_by_shape(local, ATTENTION, "gfx1030", wide) == {precise: "triton"}
    keep(local, "gfx1030", precise, {"triton": result(0.5, error=0.003)})
    assert fastest_by_shape(local, ATTENTION, "gfx1030", wide) == {precise: "native"}
    for text in ("0", "-1", "11", "nan", "two"):
        with pytest.raises(InputError, match=r"LONGTAKE_ATTENTION_DEVIATION is .*; expected percent"):
            profile_in_force(machine_of_card("gfx1100:24"), Local({"LONGTAKE_ATTENTION_DEVIATION": text}))


def plan(card: str, local: Local = Local(), **settings: Any) -> Any:  # noqa: B008 - frozen
    request = GenerationRequest(image="x", model="framepack-i2v", **settings)
    profile = profile_in_force(machine_of_card(card), local)
    return plan_video(request, find_model("framepack-i2v"), profile, local=local)


def test_a_card_with_only_math_attention_has_a_plan_that_runs() -> None:
    whole, sliced = plan("gfx1100:16"), plan("gfx1100:16", attention="sliced")
    assert (whole.attention.value, plan("gfx103x:16").attention.value) == ("native", "sliced")
    more = sliced.job.stage("sample").working_bytes - whole.job.stage("sample").working_bytes
    assert 0.9 * 2**28 < more <= 2**28
    notes = plan("gfx103x:16").notes
    assert any("in slices, which takes longer, because AOTriton has no" in note for note in notes)
    assert plan("gfx103x:8").attention.value == "sliced"
    with pytest.raises(InputError, match="the working set takes 65"):
        plan("gfx103x:16", attention="native")


def test_what_was_seen_and_what_is_set_decide(tmp_path: Path) -> None:
    local = Local(folder=tmp_path)
    key = shape_key(24, 18485, 128, "bfloat16")
    keep(local, "gfx1100", key, {"native": IN_MATH, "triton": result(1.0)})
    store_kernel(local.kernels, "gfx1100", version_of("torch"), MATH)
    video_plan = plan("gfx1100:16", local)
    assert (video_plan.attention.value, video_plan.attention.reason) == ("triton", "the fastest on this card")
    assert plan("gfx1100:16", local, resolution=320).attention.value == "sliced"  # another shape
    assert plan("gfx1100:16", local, attention="sliced").attention.value == "sliced"
    user_local = Local({"LONGTAKE_ATTENTION": "efficient"}, tmp_path)
    assert plan("gfx1100:16", user_local).attention.value == "efficient"
    assert plan("gfx1100:16", user_local, attention="sage").attention.value == "sage"
    assert plan("gfx1100:16", Local({"LONGTAKE_ATTENTION": "auto"}, tmp_path)) == video_plan
    with pytest.raises(InputError, match="LONGTAKE_ATTENTION is 'fused'; expected auto or native or sliced"):
        profile_for(machine_of_card("gfx1100:24"), {"LONGTAKE_ATTENTION": "fused"})


class Tried:
    """A stand-in for the trials in other processes, which gives prepared results for each task."""

    def __init__(self, *answers: Mapping[str, Any], is_complete: bool = True) -> None:
        self.asked = list[Task]()
        self._answers, self._is_complete = answers, is_complete

    def __call__(self, tasks: list[Task], routes: RouteStore, **settings: Any) -> bool:
        (task,) = tasks
        answers = self._answers[min(len(self.asked), len(self._answers) - 1)]
        self.asked.append(task)
        for candidate in task.candidates if self._is_complete else ():
            found = answers.get(candidate, {**IN_MATH, "kernel": MATH})
            with routes.trying(task.case, candidate) as results:
                results += [] if found.get("passes") else [found]
            if "on_result" in settings:
                settings["on_result"](task, candidate, found)
        return self._is_complete


@pytest.fixture
def radeon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffusers_helper.job.plans.machine_of", lambda *_: machine_of_card("gfx1100:24"))


def test_a_gpu_tries_once_for_each_shape_and_a_cpu_never(
    deep_models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers_helper.job.plans.kitchen_problem", lambda: "")
    tried = Tried({})
    local, request = Local(folder=tmp_path, try_candidates=tried), tiny_request(small_scene)
    assert MemoryPlans(request, deep_models, 64, 64, local).attention == ("native", 2**28)
    assert tried.asked == []
    monkeypatch.setattr("diffusers_helper.job.plans.machine_of", lambda *_: machine_of_card("gfx1100:24"))
    for _ in range(2):
        assert MemoryPlans(request, deep_models, 64, 64, local).attention[0] == "sliced"
    of_attention, of_products, of_blocks = tried.asked
    heads, tokens, head_dim, dtype, limit = of_attention.arguments
    assert (heads, head_dim, dtype, limit) == (2, 16, "float32", 2**28)
    assert (of_blocks.candidates, of_blocks.arguments) == (
        ["plain", "fused"],
        [2, tokens, 16, "float32", False],
    )
    assert of_attention.candidates == [*candidate_backends()]
    assert of_products.candidates == ["default", "cublas", "cublaslt", "ck"]
    assert of_products.arguments == [2, tokens, 16, "float32"]
    assert 100 < tokens < 1024
    with pytest.raises(InputError, match="attention is triton, but the package flash_attn is not installed"):
        MemoryPlans(tiny_request(small_scene, attention="triton"), deep_models, 64, 64, local)
    stored = MemoryPlans(request, deep_models, 64, 64, local, stored_attention=("math", 77)).attention
    assert stored == ("math", 77)
    plain = MemoryPlans(
        tiny_request(small_scene, kernels="plain"), deep_models, 64, 64, Local(try_candidates=tried)
    )
    assert (plain.attention[0], len(tried.asked)) == ("native", 3)


@pytest.mark.usefixtures("radeon")
def test_a_busy_card_is_asked_once_in_each_job_until_it_answers(
    deep_models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers_helper.job.plans.candidate_backends", lambda: ("native", "triton"))
    monkeypatch.setattr("diffusers_helper.job.plans.kitchen_problem", lambda: "it is not here")
    monkeypatch.setitem(LIBRARIES, "rocm", ())
    events = list[Event]()
    tried = Tried({"native": BUSY}, {"native": BUSY}, {"native": {**result(1.0, error=0), "kernel": FLASH}})

    def attention(number: int, tried: Tried) -> str:
        job = open_job(
            tiny_request(small_scene), deep_models, folder=tmp_path / f"job{number}",
            on_event=events.append, local=Local(folder=tmp_path, try_candidates=tried),
        )  # fmt: skip
        return job.memory.plans.attention[0]

    assert [attention(number, tried) for number in range(4)] == ["sliced", "sliced", "native", "native"]
    # What has failed for good is not asked again.
    assert [task.candidates for task in tried.asked] == [["native", "triton"], ["native"], ["native"]]
    assert outline(events)[:4] == ["attention", "attention None 1/2", "attention None 2/2", "JobStarted"]
    assert {event.job for event in events} == {f"job{number}" for number in range(4)}
    assert stored_kernel(Local(folder=tmp_path).kernels, "gfx1100") == FLASH


@pytest.mark.usefixtures("radeon")
def test_when_the_time_is_over_the_plain_way_is_taken_and_said(
    deep_models: Models, small_scene: Path, tmp_path: Path
) -> None:
    events, tried = list[Event](), Tried({}, is_complete=False)
    job = open_job(
        tiny_request(small_scene), deep_models, folder=tmp_path / "job", on_event=events.append,
        local=Local(folder=tmp_path, try_candidates=tried),
    )  # fmt: skip
    assert (job.memory.plans.attention[0], job.memory.plans.request.kernels) == ("native", "plain")
    assert [event.message for event in events if isinstance(event, Warned)].count(LATE) == 1


@pytest.mark.slow
def test_a_resumed_job_attends_as_it_began(tiny_model: Path, small_scene: Path, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if outline([event]) == ["sample 2"]:
            raise Stop

    models = load_tiny(tiny_model)
    request = tiny_request(small_scene, seconds=seconds_for(2), steps=1)
    sliced = Local({"LONGTAKE_ATTENTION": "sliced"})
    whole, events = make(request, models, tmp_path / "whole", local=sliced)
    started = next(event for event in events if isinstance(event, JobStarted))
    assert started.attention == "sliced"
    assert (tmp_path / "whole" / "attention").read_text() == f"sliced {2**28}"
    native, _ = make(request, models, tmp_path / "native")
    assert not torch.equal(native.latents, whole.latents)  # otherwise, this test would show nothing
    torch.testing.assert_close(native.latents, whole.latents, atol=1e-3, rtol=1e-3)

    begun = tmp_path / "begun"
    with pytest.raises(Stop):
        generate(request, models, folder=begun, on_event=stop, local=sliced)
    copy = shutil.copytree(begun, tmp_path / "copy")
    resumed, _ = make(request, models, begun, resume_from=begun)
    assert resumed.video.read_bytes() == whole.video.read_bytes()
    assert read_recipe(resumed.video).made_with["attention"] == "sliced"
    elsewhere = shutil.copytree(copy, tmp_path / "elsewhere")
    (copy / "attention").write_text("nonsense")
    again, _ = make(request, models, copy, resume_from=copy, local=sliced)
    assert again.video.read_bytes() == whole.video.read_bytes()

    (elsewhere / "attention").write_text(f"triton {2**28}")
    _, events = make(request, models, elsewhere, resume_from=elsewhere)
    assert isinstance(events[-1], Finished)
    (told,) = (event.message for event in events if isinstance(event, Warned))
    assert told.startswith(
        "This video was begun with the attention triton; here, it needs a GPU. What follows"
    )
    assert (elsewhere / "attention").read_text() == f"native {2**28}"

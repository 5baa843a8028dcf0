"""Tests of the automatic choice: kernels are tried in a process of their own, and the choice is kept."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from app.machine import machine_of_card
from app.trials import _end_of, try_kernels
from diffusers_helper.attention.backends import BACKENDS, candidate_backends
from diffusers_helper.attention.dispatch import attention_function
from diffusers_helper.attention.trial import _temporary_mark
from diffusers_helper.attention.trial import try_kernels as try_here
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, InputError
from diffusers_helper.events import Event, JobStarted
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.job.setup import open_job
from diffusers_helper.loading.loaders import Models
from diffusers_helper.machine.local import (
    Facts,
    Local,
    deviation_of,
    fastest_backends,
    refused_backends,
    shape_key,
    store_trial,
    stored_kernel,
)
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
    RAISES,
    RIGHT,
    RIGHT_IN_KITCHEN,
    WRONG,
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
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    trials = try_kernels(("triton", "sage", "native", "sliced", "aiter"), *SHAPE, environ=environ)
    assert [trial["backend"] for trial in trials] == ["triton", "sage", "native", "sliced", "aiter"]
    assert trials[0]["failed"] == "its process ended with -6"
    assert trials[1]["failed"].startswith("its results differ by ")
    assert 0 < trials[2]["error"] < 0.01
    assert "flash" in trials[2]["kernel"]
    assert trials[3]["error"] <= trials[2]["error"]
    assert "diffusers cannot use" in trials[4]["failed"]


@pytest.mark.slow
def test_a_kernel_that_raises_is_left_out_and_a_right_one_is_timed(tmp_path: Path) -> None:
    write_kernel(tmp_path, "flash_attn", RAISES)
    write_kernel(tmp_path, "sageattention", RIGHT)
    write_kernel(tmp_path, "comfy_kitchen", RIGHT_IN_KITCHEN)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    raised, *others = try_kernels(("triton", "sage", "kitchen"), *SHAPE, environ=environ)
    assert raised == {"backend": "triton", "failed": "no kernel image is available"}
    for right in others:
        assert right["seconds"] > 0
        assert "failed" not in right


def test_a_kernel_that_gives_no_numbers_or_wrong_ones_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    last = torch.ones(96, 1, 1)
    last[-1] = 0
    factors: dict[str, Any] = {"flash": float("nan"), "sage": 1.2, "aiter": last, "native": 1.0}

    def attention(backend: str, limit_bytes: int) -> Any:
        whole = attention_function("native", limit_bytes)
        return lambda *inputs: whole(*inputs) * factors[backend]

    monkeypatch.setattr("diffusers_helper.attention.trial.attention_function", attention)
    *wrong, right = try_here(factors, *SHAPE)
    said = [trial["failed"].removeprefix("its results differ by ") for trial in wrong]
    assert said[:2] == ["nan of their size", "0.2 of their size"]
    assert len(said) == 3  # of which the last is wrong in its last row alone
    assert "failed" not in right


def test_a_kernel_that_hangs_is_ended(tmp_path: Path) -> None:
    write_kernel(tmp_path, "flash_attn", HANGS)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (trial,) = try_kernels(("triton",), *SHAPE, environ=environ, seconds=1)
    assert trial == {"backend": "triton", "failed": "it took more than 1 seconds", "passes": True}


@pytest.mark.slow
def test_a_way_that_is_killed_may_be_tried_again_and_one_that_loses_the_card_harms_no_other(
    tmp_path: Path,
) -> None:
    write_kernel(tmp_path, "flash_attn", IS_KILLED)
    write_kernel(tmp_path, "sageattention", LOSES)
    environ, progress = {**os.environ, "PYTHONPATH": str(tmp_path)}, list[tuple[int, int]]()
    ways = ("triton", "sage", "native")
    killed, lost, native = try_kernels(
        ways, *SHAPE, environ=environ, on_progress=lambda *counts: progress.append(counts)
    )
    assert killed == {"backend": "triton", "failed": "its process ended with -9", "passes": True}
    assert lost == {"backend": "sage", "failed": "HIP error: an illegal memory access was encountered"}
    assert native["backend"] == "native"
    assert native["seconds"] > 0
    assert progress == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_trial_ends_with_its_job(tmp_path: Path) -> None:
    write_kernel(tmp_path, "flash_attn", HANGS)
    cancel = CancelToken()
    with pytest.raises(GenerationCancelled):
        try_kernels(("triton",), *SHAPE, environ={}, on_progress=lambda *_: cancel.cancel(), cancel=cancel)


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


def result(way: str, seconds: float, kernel: str = FLASH, error: float = 0.003) -> dict[str, Any]:
    return {"backend": way, "seconds": seconds, "error": error, "kernel": kernel}


BAD = {"backend": "sage", "failed": "its results differ by 1 of their size"}
BUSY = {"backend": "native", "failed": OOM.format("4.00"), "passes": True}


@pytest.mark.parametrize(
    ("trials", "way"),
    [
        ([result("native", 1.0), result("triton", 0.95), BAD], "native"),
        ([result("native", 1.0), result("triton", 0.8), BAD], "triton"),
        ([result("native", 1.0, MATH), result("triton", 2.0)], "triton"),
        ([result("native", 1.0, MATH), BAD], "sliced"),
        ([{"backend": "native", "failed": "no kernel image is available"}], "sliced"),
    ],
)
def test_the_fastest_right_way_is_kept_for_card_software_and_shape(
    trials: list[dict[str, Any]], way: str, tmp_path: Path
) -> None:
    facts, key = Facts(tmp_path / "attention.json"), shape_key(24, 18400, 128, "bfloat16")
    store_trial(facts, "gfx1100", key, trials)
    assert fastest_backends(facts, "gfx1100", 0.01) == {key: way}
    assert fastest_backends(facts, "gfx1030", 0.01) == {}
    assert shape_key(24, 18200, 128, "bfloat16") == key != shape_key(24, 18433, 128, "bfloat16")
    if trials and "kernel" in trials[0]:
        assert stored_kernel(facts, "gfx1100") == trials[0]["kernel"]
    store_trial(facts, "gfx1100", "another", [result("native", 1.0)])
    assert fastest_backends(facts, "gfx1100", 0.01) == {key: way, "another": "native"}


def test_what_passes_is_not_kept_and_new_software_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, key = Facts(tmp_path / "attention.json"), shape_key(24, 18400, 128, "bfloat16")
    assert store_trial(facts, "gfx1100", key, [BUSY]) == {"native": BUSY}
    assert fastest_backends(facts, "gfx1100", 0.01) == {}
    both = store_trial(facts, "gfx1100", key, [BUSY, result("triton", 1.0)])
    assert both.keys() == {"native", "triton"}
    assert fastest_backends(facts, "gfx1100", 0.01) == {key: "triton"}
    assert store_trial(facts, "gfx1100", key, [result("native", 0.5)]).keys() == {"native", "triton"}
    assert fastest_backends(facts, "gfx1100", 0.01) == {key: "native"}
    for name in ("driver_version", "version_of"):
        with monkeypatch.context() as patch:
            patch.setattr(f"diffusers_helper.machine.local.{name}", lambda _: "7.1")
            assert fastest_backends(facts, "gfx1100", 0.01) == {}
    assert fastest_backends(facts, "gfx1100", 0.01) == {key: "native"}


def test_a_person_chooses_how_far_results_may_differ(tmp_path: Path) -> None:
    facts, key = Facts(tmp_path / "attention.json"), shape_key(24, 18400, 128, "bfloat16")
    store_trial(facts, "gfx1201", key, [result("native", 1.0), result("sage", 0.5, error=0.0145)])
    assert deviation_of({}) == deviation_of({"LONGTAKE_ATTENTION_DEVIATION": "1"}) == 0.01
    assert fastest_backends(facts, "gfx1201", 0.01) == {key: "native"}
    assert refused_backends(facts, "gfx1201", 0.01) == {"sage": 0.0145}
    wide = deviation_of({"LONGTAKE_ATTENTION_DEVIATION": "2"})
    assert fastest_backends(facts, "gfx1201", wide) == {key: "sage"}
    assert refused_backends(facts, "gfx1201", wide) == {}
    local = Local({"LONGTAKE_ATTENTION_DEVIATION": "2"}, tmp_path)
    assert profile_in_force(machine_of_card("gfx1200:16"), local).backends == {}
    precise = shape_key(24, 18400, 128, "float32")
    store_trial(facts, "gfx1030", precise, [result("native", 1.0), result("triton", 0.5, error=1e-5)])
    assert fastest_backends(facts, "gfx1030", wide) == {precise: "triton"}
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
    store_trial(local.kernels, "gfx1100", key, [result("native", 1.0, MATH), result("triton", 1.0)])
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


def test_a_gpu_tries_once_for_each_shape_and_a_cpu_never(
    deep_models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def tried(*arguments: Any) -> list[dict[str, Any]]:
        calls.append(arguments)
        return [result(backend, 1.0, MATH) for backend in arguments[0]]

    monkeypatch.setattr("diffusers_helper.job.plans.kitchen_problem", lambda: "")
    local, request = Local(folder=tmp_path, try_kernels=tried), tiny_request(small_scene)
    assert MemoryPlans(request, deep_models, 64, 64, local).attention == ("native", 2**28)
    assert calls == []
    monkeypatch.setattr("diffusers_helper.job.plans.machine_of", lambda *_: machine_of_card("gfx1100:24"))
    for _ in range(2):
        assert MemoryPlans(request, deep_models, 64, 64, local).attention[0] == "sliced"
    (ways, heads, tokens, head_dim, dtype, limit), of_blocks = calls
    assert of_blocks == (["plain", "fused"], 2, tokens, 16, "float32", 0, False)
    assert (ways, heads, head_dim, dtype, limit) == ([*candidate_backends()], 2, 16, "float32", 2**28)
    assert 100 < tokens < 1024
    with pytest.raises(InputError, match="attention is triton, but the package flash_attn is not installed"):
        MemoryPlans(tiny_request(small_scene, attention="triton"), deep_models, 64, 64, local)
    stored = MemoryPlans(request, deep_models, 64, 64, local, stored_attention=("math", 77)).attention
    assert stored == ("math", 77)
    assert len(calls) == 2
    plain = MemoryPlans(
        tiny_request(small_scene, kernels="plain"), deep_models, 64, 64, Local(try_kernels=tried)
    )
    assert (plain.attention[0], len(calls)) == ("native", 2)


def test_a_busy_card_is_asked_once_in_each_job_until_it_answers(
    deep_models: Models, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffusers_helper.job.plans.machine_of", lambda *_: machine_of_card("gfx1100:24"))
    monkeypatch.setattr("diffusers_helper.job.plans.candidate_backends", lambda: ("native", "triton"))
    monkeypatch.setattr("diffusers_helper.job.plans.kitchen_problem", lambda: "it is not here")
    wrong = {"backend": "triton", "failed": "no kernel image"}
    answers = [[BUSY, wrong], [BUSY], [result("native", 1.0, error=0)]]
    asked, events = list[list[str]](), list[Event]()

    def tried(ways: list[str], *_: Any, on_progress: Any, cancel: Any) -> list[dict[str, Any]]:
        asked.append(ways)
        trials = answers[len(asked) - 1]
        for done in range(len(trials) + 1):
            on_progress(done, len(trials))
        return trials

    def attention(number: int) -> str:
        job = open_job(
            tiny_request(small_scene), deep_models, folder=tmp_path / f"job{number}",
            on_event=events.append, local=Local(folder=tmp_path, try_kernels=tried),
        )  # fmt: skip
        return job.memory.plans.attention[0]

    assert [attention(number) for number in range(4)] == ["sliced", "sliced", "native", "native"]
    assert asked == [["native", "triton"], ["native"], ["native"]]  # what has failed for good is not
    assert outline(events)[:4] == ["attention", "attention None 1/2", "attention None 2/2", "JobStarted"]
    assert {event.job for event in events} == {f"job{number}" for number in range(4)}


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
    (copy / "attention").write_text("nonsense")
    again, _ = make(request, models, copy, resume_from=copy, local=sliced)
    assert again.video.read_bytes() == whole.video.read_bytes()

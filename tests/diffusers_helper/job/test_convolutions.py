"""Tests that the convolutions which take the time are measured before a decode, on a card with ROCm alone."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.trials import local_with_trials, measure_convolutions
from cache.conv_probe import heaviest, multiplications
from cache.conv_routes import TRYING, ConvCase, RouteStore
from cache.conv_tuning import measure_in_processes
from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import GenerationCancelled, LongtakeError
from diffusers_helper.job import convolutions
from diffusers_helper.job.convolutions import choose_convolutions
from diffusers_helper.job.plans import MemoryPlans
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.machine.local import Local
from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.models.registry import find_model
from diffusers_helper.vae.convolutions import conv_cases
from tests.support.jobs import ROOT
from tests.support.making import make, outline, tiny_request

CARD = "gfx1100"
CPU = torch.device("cpu")


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processor pass for a Radeon card in all that concerns convolutions."""
    for module in ("cache.conv", "diffusers_helper.vae.convolutions", "diffusers_helper.job.convolutions"):
        monkeypatch.setattr(f"{module}.card_of", lambda device: (CARD, "7.2"))


@pytest.fixture
def models(tiny_model: Path, tmp_path: Path) -> Models:
    info = find_model(str(tiny_model), allow_folder=True)
    return load_models(
        info, device="cpu", convolutions=initialize_miopen_fallback(folder=tmp_path / "routes")
    )


class Measurer:
    """A stand-in for the process that measures, for which `taps` is the fastest everywhere."""

    def __init__(self) -> None:
        self.asked: list[ConvCase] = []
        self.limits: dict[str, Any] = {}
        self.ends: Callable[[RouteStore, ConvCase], str | None] = lambda routes, case: None

    def __call__(self, tasks: Any, folder: Path, device: str, *, take: Any, **limits: Any) -> str:
        self.limits, routes = {"device": device, **limits}, RouteStore(folder)
        for text, left_out in tasks:
            case = ConvCase.from_text(text)
            self.asked.append(case)
            if "miopen" not in left_out and (reason := self.ends(routes, case)) is not None:
                return reason
            times = {name: time for name, time in (("miopen", 9.0), ("taps", 1.0)) if name not in left_out}
            routes.add_measured(case, times, {}, "taps", "measured")
            take(text, "measured")
        return ""


def choose(
    models: Models, scene: Path, measurer: Any, told: list[tuple[int, int]] | None = None, **settings: Any
) -> None:
    request, local = tiny_request(scene, **settings), Local(measure_convolutions=measurer)
    plans = MemoryPlans(request, models, 64, 64, local)
    sections, seen = models.info.family.sections(request), [] if told is None else told
    choose_convolutions(plans, sections, local, lambda *one: seen.append(one), CancelToken(), plans.device)


@pytest.mark.usefixtures("rocm")
def test_the_largest_shapes_are_measured_once_and_the_ladder_follows(
    models: Models, small_scene: Path, tmp_path: Path
) -> None:
    vae, measurer, told = models.component("vae"), Measurer(), list[tuple[int, int]]()
    frames = torch.randn(1, 16, 5, 8, 8)
    with torch.inference_mode():
        vae.decoder(vae.post_quant_conv(frames))  # the ladder settles on its first rung
    ladder = models.convolutions.ladder
    assert ladder is not None
    assert set(+ladder.successes) == {"miopen"}
    choose(models, small_scene, measurer, told)
    calls = conv_cases(vae, torch.float32, CPU, 64, 64, [5, 5, 4])
    work = {case: multiplications(case) * count for case, count in calls.items()}
    assert set(measurer.asked) < calls.keys()
    assert sum(work[case] for case in measurer.asked) >= 0.9 * sum(work.values())
    assert max(work.values()) == work[measurer.asked[0]]
    assert told == [(n, len(measurer.asked)) for n in range(len(measurer.asked) + 1)]
    assert measurer.limits["device"] == "cpu"
    assert 0 < measurer.limits["all_seconds"] <= 60
    with torch.inference_mode():
        vae.decoder(vae.post_quant_conv(frames))
    assert ladder.successes["taps"] > 0
    before = list(measurer.asked)
    choose(models, small_scene, measurer, told)
    assert measurer.asked == before
    assert RouteStore(tmp_path / "routes").get(before[0]).rung == "taps"


def test_no_other_device_and_no_forced_way_is_measured(
    models: Models, small_scene: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measurer = Measurer()
    choose(models, small_scene, measurer)
    monkeypatch.setattr(convolutions, "card_of", lambda device: (CARD, "7.2"))
    for settings in ({"rung": "taps", "folder": tmp_path}, {"rung": "off", "folder": tmp_path}, {}):
        other = load_models(models.info, device="cpu", convolutions=initialize_miopen_fallback(**settings))
        choose(other, small_scene, measurer)
    choose(models, small_scene, None)
    assert measurer.asked == []


@pytest.mark.usefixtures("rocm")
def test_a_way_that_ends_or_halts_the_process_is_left_out_from_then_on(
    models: Models, small_scene: Path, tmp_path: Path
) -> None:
    measurer, begun = Measurer(), list[ConvCase]()

    def halt(routes: RouteStore, case: ConvCase) -> str | None:
        begun.append(case)
        if len(begun) != 2:
            return None
        routes.block(case, "miopen", TRYING)
        return "it took more than 240 seconds"

    measurer.ends = halt
    choose(models, small_scene, measurer)
    routes = RouteStore(tmp_path / "routes")
    assert measurer.asked[1] == measurer.asked[2]
    assert routes.get(measurer.asked[1]).measured == {"taps": 1.0}
    assert "it took more than 240 seconds" in routes.get(measurer.asked[1]).deadly["miopen"]
    assert len(set(measurer.asked)) > 3  # the others are measured, too


@pytest.mark.usefixtures("rocm")
@pytest.mark.parametrize("error", [GenerationCancelled(), LongtakeError("It was killed.")])
def test_a_way_is_not_to_blame_for_an_end_from_outside(
    error: Exception, models: Models, small_scene: Path, tmp_path: Path
) -> None:
    measurer, folder = Measurer(), tmp_path / "routes"

    def end(routes: RouteStore, case: ConvCase) -> str | None:
        RouteStore(folder).choose(case, "miopen", "works")
        routes.reload()
        routes.block(case, "miopen", TRYING)
        raise error

    measurer.ends = end
    if isinstance(error, GenerationCancelled):
        with pytest.raises(GenerationCancelled):
            choose(models, small_scene, measurer)
    else:
        choose(models, small_scene, measurer)
    assert RouteStore(folder).get(measurer.asked[0]).deadly == {}
    measurer.ends = lambda routes, case: None
    choose(models, small_scene, measurer)
    assert RouteStore(folder).get(measurer.asked[0]).rung == "taps"


@pytest.mark.usefixtures("rocm")
def test_no_shape_is_begun_when_the_time_is_over(
    models: Models, small_scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "_ALL_SECONDS", 0.0)
    measurer = Measurer()
    choose(models, small_scene, measurer)
    assert measurer.asked == []


def test_the_heaviest_make_their_share_together() -> None:
    case = ConvCase(
        CARD, "7.2", "2", "float16", (1, 4, 1, 2, 2), (4, 4, 1, 1, 1), (1,) * 3, (0,) * 3, (1,) * 3, 1
    )
    small, large = (replace(case, shape=(1, 4, frames, 2, 2)) for frames in (2, 6))
    assert heaviest({case: 1, small: 4, large: 1}, 0.9) == [small, large]
    assert heaviest({case: 1, small: 4, large: 1}, 1.0) == [small, large, case]
    assert heaviest({}, 0.9) == []


@pytest.mark.slow
@pytest.mark.usefixtures("rocm")
def test_a_job_tells_what_it_measures_before_the_vae_works(
    models: Models, small_scene: Path, tmp_path: Path
) -> None:
    measurer = Measurer()
    local = Local(measure_convolutions=measurer)
    _, events = make(tiny_request(small_scene, steps=1), models, tmp_path / "job", local=local)
    told = outline(events)
    number = len(measurer.asked)
    assert told.count("convolutions") == 1
    begin = told.index("convolutions")
    assert told[begin + 1 : begin + 1 + number] == [
        f"convolutions None {n}/{number}" for n in range(1, number + 1)
    ]
    assert begin < told.index("vae_encode") < told.index("decode 1")


@pytest.mark.slow
def test_a_process_measures_and_may_end(tmp_path: Path) -> None:
    case = ConvCase(
        "cpu", "none", torch.__version__, "float32", (1, 3, 5, 6, 8), (5, 3, 3, 3, 3), *[(1,) * 3] * 3, 1
    )
    cases = [case, replace(case, shape=(1, 3, 3, 6, 8))]
    driver = {"PYTHONPATH": str(ROOT / "tests" / "support" / "bad_driver"), "BAD_DRIVER_FAULT": "shape"}
    driver |= {"BAD_DRIVER_SHAPE": "1x3x5x6x8", "BAD_DRIVER_CALLS": str(tmp_path / "calls")}
    routes, said, told = RouteStore(tmp_path / "routes"), list[str](), list[str]()

    def run(tasks: Any) -> str:
        return measure_convolutions(
            tasks,
            routes.folder,
            "cpu",
            environ={**os.environ, **driver},
            take=lambda text, _: told.append(text),
        )

    measure_in_processes(cases, routes, run, on_death=lambda text, _: said.append(text))
    assert told == [str(one) for one in cases]
    assert [set(routes.get(one).measured) for one in cases] == [
        {"taps", "tiles"},
        {"miopen", "taps", "tiles"},
    ]
    assert "its process ended with -6" in routes.get(case).deadly["miopen"]
    assert said[0].startswith(f"miopen ended the process at {case}")
    assert measure_convolutions([], tmp_path, "cpu", environ=os.environ, take=print, all_seconds=0.0) == ""


def test_the_engine_has_both_trials() -> None:
    local = local_with_trials({})
    assert local.try_kernels
    assert local.measure_convolutions

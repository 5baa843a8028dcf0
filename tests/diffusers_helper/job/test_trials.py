"""Tests that the convolutions which take the time are measured before a decode, on a card with ROCm alone."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.trials import try_candidates
from cache import conv_probe
from cache.conv_rungs import ConvCase
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Event
from diffusers_helper.job import trials
from diffusers_helper.job.plans import LATE, MemoryPlans
from diffusers_helper.job.trials import choose_convolutions, with_trials_of
from diffusers_helper.loading.loaders import Models, load_models
from diffusers_helper.machine.local import Local
from diffusers_helper.machine.routes import Case, RouteStore, Task
from diffusers_helper.miopen_fallback import initialize_miopen_fallback
from diffusers_helper.models.registry import find_model
from diffusers_helper.output.report import Report
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.vae.convolutions import conv_cases
from tests.support.jobs import ROOT
from tests.support.making import make, outline, tiny_request

CARD = "gfx1100"
CPU = torch.device("cpu")


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processor pass for a Radeon card in all that concerns convolutions."""
    for module in ("cache.conv", "diffusers_helper.vae.convolutions", "diffusers_helper.job.trials"):
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
        self.asked: list[Task] = []
        self.limits: dict[str, Any] = {}
        self.is_complete = True

    def __call__(self, tasks: list[Task], routes: RouteStore, *, on_result: Any, **limits: Any) -> bool:
        self.limits = limits
        for task in tasks:
            self.asked.append(task)
            for candidate in task.candidates:
                with routes.trying(task.case, candidate) as results:
                    results.append(
                        {"milliseconds": 1.0 if candidate == "taps" else 9.0, "error": 0.0, "bytes": 0}
                    )
                on_result(task, candidate, results[0])
        return self.is_complete

    @property
    def cases(self) -> list[Case]:
        return [task.case for task in self.asked]


def choose(models: Models, scene: Path, measurer: Any, events: list[Event] | None = None) -> list[str]:
    """Return the warnings."""
    request, told, warnings = tiny_request(scene), [] if events is None else events, list[str]()
    sections = models.info.family.sections(request)
    report = Report(JobFolder(scene.parent), sections, told.append)
    local = with_trials_of(Local(try_candidates=measurer), "convolutions", report, CancelToken())
    plans = MemoryPlans(request, models, 64, 64, Local())
    choose_convolutions(plans, sections, local, warnings.append, plans.device)
    return warnings


@pytest.mark.usefixtures("rocm")
def test_the_largest_shapes_are_measured_once_and_the_ladder_follows(
    models: Models, small_scene: Path, tmp_path: Path
) -> None:
    vae, measurer, events = models.component("vae"), Measurer(), list[Event]()
    frames = torch.randn(1, 16, 5, 8, 8)
    with torch.inference_mode():
        vae.decoder(vae.post_quant_conv(frames))  # the ladder settles on its first rung
    ladder = models.convolutions.ladder
    assert ladder is not None
    assert set(+ladder.successes) == {"miopen"}
    assert choose(models, small_scene, measurer, events) == []
    none, one, two, calls = (
        Counter(conv_cases(vae, torch.float32, CPU, 64, 64, windows))
        for windows in ([], [5], [5, 5], [5, 5, 4])
    )
    assert two - one == one - none
    work = {case: case.multiplications * count for case, count in calls.items()}
    cases = measurer.cases
    assert set(cases) < calls.keys()
    assert sum(work[case] for case in cases) >= 0.9 * sum(work.values())
    assert max(work.values()) == work[cases[0]]
    total = sum(len(task.candidates) for task in measurer.asked)
    assert total > len(cases)  # several ways for each
    assert outline(events) == [
        "convolutions",
        *(f"convolutions None {n}/{total}" for n in range(1, total + 1)),
    ]
    assert measurer.limits.pop("cancel")
    assert measurer.limits == {"device": "cpu", "limit_bytes": 0, "seconds": 30, "all_seconds": 60}
    with torch.inference_mode():
        vae.decoder(vae.post_quant_conv(frames))
    assert ladder.successes["taps"] > 0
    choose(models, small_scene, measurer)
    assert measurer.cases == cases
    assert RouteStore(tmp_path / "routes").get(cases[0]).rung == "taps"


def test_no_other_device_and_no_forced_way_is_measured(
    models: Models, small_scene: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measurer = Measurer()
    choose(models, small_scene, measurer)
    monkeypatch.setattr(trials, "card_of", lambda device: (CARD, "7.2"))
    for settings in ({"rung": "taps", "folder": tmp_path}, {"rung": "off", "folder": tmp_path}, {}):
        other = load_models(models.info, device="cpu", convolutions=initialize_miopen_fallback(**settings))
        choose(other, small_scene, measurer)
    choose(models, small_scene, None)
    assert measurer.asked == []


def test_nvidias_cards_try_two_layouts(
    models: Models, small_scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("cache.conv", "diffusers_helper.vae.convolutions", "diffusers_helper.job.trials"):
        monkeypatch.setattr(f"{module}.card_of", lambda device: ("sm_90", "none"))
    measurer = Measurer()
    choose(models, small_scene, measurer)
    assert {tuple(task.candidates) for task in measurer.asked if " conv2d" not in str(task.case)} == {
        ("miopen", "channels")
    }


@pytest.mark.usefixtures("rocm")
def test_a_trial_that_takes_too_long_is_told_and_goes_on_with_the_next_video(
    models: Models, small_scene: Path
) -> None:
    measurer = Measurer()
    measurer.is_complete = False
    assert choose(models, small_scene, measurer) == [LATE]
    assert choose(models, small_scene, measurer) == []  # everything was measured meanwhile


@pytest.mark.slow
@pytest.mark.usefixtures("rocm")
def test_a_job_tells_what_it_measures_before_the_vae_works(
    models: Models, small_scene: Path, tmp_path: Path
) -> None:
    measurer = Measurer()
    local = Local(try_candidates=measurer)
    _, events = make(tiny_request(small_scene, steps=1), models, tmp_path / "job", local=local)
    told = outline(events)
    number = sum(len(task.candidates) for task in measurer.asked)
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
    routes, told = RouteStore(tmp_path / "routes"), list[tuple[Case, str]]()

    def run(**limits: Any) -> bool:
        tasks = conv_probe.trials(cases, routes)
        take = lambda task, candidate, result: told.append((task.case, candidate))  # noqa: E731
        return try_candidates(tasks, routes, environ={**os.environ, **driver}, on_result=take, **limits)

    assert not run(all_seconds=-1.0)
    assert told == []
    assert run()
    assert told == [(one, candidate) for one in cases for candidate in ("miopen", "taps", "tiles")]
    stored = [RouteStore(tmp_path / "routes").get(one) for one in cases]
    assert [set(route.measured) for route in stored] == [{"taps", "tiles"}, {"miopen", "taps", "tiles"}]
    assert stored[0].deadly == {"miopen": "its process ended with -6"}

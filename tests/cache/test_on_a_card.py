"""Tests of what the ladder and the trial do on a GPU alone, with doubles of torch's calls to its driver."""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cache import conv, trial
from cache.conv import ConvLadder, card_of, case_of, works
from cache.conv_probe import _boxes, candidates, trials
from cache.conv_rungs import RUNGS, Convolution, Rung
from cache.trial import TrialWork, try_candidates
from diffusers_helper.machine.routes import Route, RouteStore
from tests.support.drivers import MEMORY, NO_ALGORITHM, Driver, ladder, some_call

CARD = torch.device("cuda")


class OnCard(Tensor):
    is_cuda = property(lambda tensor: True)  # type: ignore[assignment]


def computing_rung(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> None:
    """Let the plain rung, and waiting for the card, write to a log."""
    plain = RUNGS["miopen"].run

    def run(x: Tensor, convolution: Convolution) -> Tensor:
        log.append("compute")
        return plain(x, convolution)

    monkeypatch.setitem(RUNGS, "miopen", Rung("miopen", run))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("wait"))


def test_a_first_call_alone_waits_for_the_card_before_it_and_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = list[str]()
    computing_rung(monkeypatch, log)
    learned = ladder(
        on_first_call=lambda case, rung: log.append("begin"),
        after_first_call=lambda case, rung: log.append("end"),
    )
    x, *rest = some_call()
    for expected in ["wait", "begin", "compute", "wait", "end"], ["compute"]:
        log.clear()
        learned.conv3d(x.as_subclass(OnCard), *rest)
        assert log == expected


def test_an_error_that_a_kernel_leaves_behind_counts_for_its_own_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = list[str]()
    computing_rung(monkeypatch, log)

    def wait(device: torch.device) -> None:
        if "compute" in log:
            raise RuntimeError("HIP error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(conv, "works", lambda device: False)
    routes, (x, *rest) = RouteStore(), some_call()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        ConvLadder(routes).conv3d(x.as_subclass(OnCard), *rest)
    assert {*routes.get(case_of(x, Convolution(*rest))).deadly} == {"miopen"}


@pytest.mark.parametrize(
    ("text", "device", "empties", "fails"),
    [(MEMORY, CARD, 1, False), (MEMORY, torch.device("cpu"), 0, False), (NO_ALGORITHM, CARD, 0, True)],
)
def test_unused_memory_is_given_back_after_a_lack_of_it(
    text: str, device: torch.device, empties: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied, routes = list[int](), RouteStore()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    case = case_of(some_call()[0], Convolution(*some_call()[1:]))
    trouble = conv.classify(RuntimeError(text))
    assert trouble
    ConvLadder(routes)._record_error(case, RUNGS["taps"], trouble, text, device)
    assert (len(emptied), "taps" in routes.get(case).failed) == (empties, fails)


@pytest.mark.parametrize(
    ("hip", "arch", "problem", "expected"),
    [
        ("7.2", "gfx1100:sramecc+", "", ("gfx1100", "7.2,comfy-kitchen-0.2")),
        ("7.2", "gfx1100", "it is missing", ("gfx1100", "7.2")),
        ("7.2", "gfx1030", "", ("gfx1030", "7.2")),
        (None, "", "", ("sm_90", "none")),
    ],
)
def test_a_card_is_named_with_all_that_its_choices_depend_on(
    hip: str | None, arch: str, problem: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(gcnArchName=arch, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(conv, "kitchen_problem", lambda: problem)
    monkeypatch.setattr(conv, "version_of", lambda name: "0.2")
    assert card_of.__wrapped__(CARD) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, True), (torch.OutOfMemoryError("full"), True), (RuntimeError("HIP error: unknown error"), False)],
)
@pytest.mark.parametrize("at", ["zeros", "wait"])
def test_a_card_without_memory_still_works_and_one_with_another_error_does_not(
    error: Exception | None, expected: bool, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.zeros

    def step(name: str) -> None:
        if error and name == at:
            raise error

    monkeypatch.setattr(torch, "zeros", lambda size, device: step("zeros") or plain(size))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: step("wait"))
    assert works(CARD) is expected
    assert works(torch.device("cpu"))


def test_what_a_ladder_leaves_out_is_described_until_it_is_back_and_stops_measurements() -> None:
    routes = RouteStore()
    learned, case = ConvLadder(routes), case_of(some_call()[0], Convolution(*some_call()[1:]))
    cpu, seen = torch.device("cpu"), list[str]()
    for change in (
        lambda: None,
        lambda: routes.add_failure(case, "native", "x"),
        lambda: routes.block(case, "tiles", "x"),
        lambda: routes.choose(case, "taps", "measured"),
    ):
        change()
        seen.append(learned.changes(cpu))
    assert len({*seen}) == 4
    plain = RouteStore()
    plain.choose(case, "miopen", "works")
    assert ConvLadder(plain).changes(cpu) == seen[0] == "[] 0"
    learned.errors[case, "miopen"] = "x"
    assert learned.changes(cpu) == seen[-1][:-1] + "1"
    assert learned.open_routes is routes
    assert ConvLadder(routes, forced="taps").open_routes is None
    for names, expected in ("taps", None), ((), routes):
        learned.leave_out(*names)
        assert learned.open_routes is expected


def test_another_process_is_heard_when_the_routes_are_read_again_and_each_case_has_its_own_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, (x, *rest) = Driver(monkeypatch), some_call()
    learned = ladder(tmp_path)
    driver.fails = lambda x, weight: x.shape[2] == 3
    for frames in (3, 4):
        learned.conv3d(x[:, :, :frames], *rest)
    (route,) = RouteStore(tmp_path).routes("cpu").values()  # a plain call that works is not worth a record
    assert (route.rung, {*route.failed}) == ("taps", {"miopen"})
    RouteStore(tmp_path).add_failure(case_of(x, Convolution(*rest)), "miopen", NO_ALGORITHM)
    learned.conv3d(x, *rest)
    learned.reload()
    learned.conv3d(x, *rest)
    assert (learned.attempts["miopen"], learned.attempts["taps"]) == (3, 2)


# ---- the trial ----------------------------------------------------------------------------------------


def test_a_trial_measures_each_way_and_ends_with_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    log = list[str]()
    for name, value in (("reset_peak_memory_stats", None), ("memory_allocated", 100), ("empty_cache", None)):
        monkeypatch.setattr(torch.cuda, name, lambda name=name, value=value: log.append(name) or value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 350)
    clock, made, computed = [0.0], list[int](), list[str]()
    monkeypatch.setattr(trial.time, "perf_counter", lambda: clock[0])
    ways: dict[str, tuple[float | Exception, Iterator[float]]] = {
        "full": (RuntimeError(MEMORY), iter(())),
        "quick": (1.0, iter((9.0, 0.1, 0.5, 0.2))),
        "slow": (1.5, iter((9.0, 1.0, 1.0, 1.0))),  # as far off as is allowed
        "wrong": (1.75, iter((9.0,))),
        "infinite elsewhere": (1.0, iter((9.0,))),
        "lost": (RuntimeError("HIP error: an illegal memory access was encountered"), iter(())),
        "after it": (1.0, iter(())),
    }

    @contextmanager
    def prepared(name: str) -> Generator[tuple[Any, str]]:
        factor, seconds = ways[name]

        def compute() -> Sequence[Tensor]:
            computed.append(name)
            if isinstance(factor, Exception):
                raise factor
            clock[0] += next(seconds)
            rest = math.inf if name == "infinite elsewhere" else factor
            return [torch.tensor([rest, factor, factor, rest])]

        yield compute, "kernel"

    def work() -> TrialWork:
        made.append(1)
        if len(made) == 1:
            raise RuntimeError("not yet")
        return TrialWork(prepared, [(0, slice(1, 3), torch.ones(2))], 0.5)

    results = list(try_candidates([(work, ["first", *ways])]))
    named = dict(zip(["first", *ways], results, strict=False))
    assert named == {
        "first": {"failed": "not yet"},
        "full": {"failed": MEMORY, "passes": True},
        "quick": {"kernel": "kernel", "milliseconds": pytest.approx(200), "error": 0, "bytes": 250},
        "slow": {"kernel": "kernel", "milliseconds": pytest.approx(1000), "error": 0.5, "bytes": 250},
        "wrong": {"kernel": "kernel", "failed": "its results differ by 0.75 of their size"},
        "infinite elsewhere": {"kernel": "kernel", "failed": "its results differ by 0 of their size"},
        "lost": {"failed": "HIP error: an illegal memory access was encountered"},
    }
    assert computed == ["full", *["quick"] * 4, *["slow"] * 3, "wrong", "infinite elsewhere", "lost"]
    before = ["reset_peak_memory_stats", "memory_allocated"]
    assert log == ["empty_cache", *before, "empty_cache", *4 * before, *before]
    assert len(made) == 2


def test_ways_that_were_measured_or_ended_a_process_are_not_tried_again_unless_all_are() -> None:
    case = case_of(some_call()[0], Convolution(*some_call()[1:]))
    routes = RouteStore()
    assert candidates(case) == ["miopen", "taps", "tiles"]
    routes.block(case, "taps", "SIGABRT")
    assert [task.candidates for task in trials([case], routes)] == [["miopen", "tiles"]]
    assert [task.candidates for task in trials([case], routes, again=True)] == [["miopen", "taps", "tiles"]]
    measured = RouteStore()
    measured.choose(case, "taps", "measured taps 1 ms")
    assert trials([case], measured) == []
    assert len(trials([case], measured, again=True)) == 1
    assert Route().is_measured is False
    assert _boxes(24, 10) == [(0, 0, 8, 8), (8, 1, 8, 8), (16, 2, 8, 8)]
    assert _boxes(3, 8) == [(0, 0, 3, 8)] * 3

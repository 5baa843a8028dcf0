"""Tests of the convolution ladder: why it leaves a rung, what it remembers, and what it never tries again."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cache import conv, conv_rungs
from cache.conv import ConvLadder, case_of
from cache.conv_rungs import CHOSEN_RUNGS, RUNGS, ConvCase, Convolution, Rung, parse_call
from diffusers_helper.machine.routes import RouteStore
from tests.support.drivers import MEMORY, NO_ALGORITHM, Driver, break_rungs, ladder, some_call

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.fixture
def call() -> tuple[Any, ...]:
    return some_call()


def test_a_mistake_is_raised_as_it_is(driver: Driver, call: tuple[Any, ...]) -> None:
    driver.error = RuntimeError("expected scalar type Half but found Float")
    driver.fails = lambda x, weight: True
    learned = ladder()
    with pytest.raises(RuntimeError) as caught:
        learned.conv3d(*call)
    assert caught.value is driver.error
    assert driver.failed == 1
    assert learned.errors == {}
    x, weight, *rest = call
    driver.fails = lambda x, weight: False
    for wrong in (x[:, :2], x[0, 0], x[:, :, :, :1, :1].int()):
        with pytest.raises(RuntimeError):
            ladder().conv3d(wrong, weight, *rest)
    with pytest.raises(RuntimeError):
        ladder().conv3d(x, weight[:, :, :, 0], *rest)


def test_one_rung_after_the_other(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Let all rungs but the last fail, each once, in order; from then on only the last is called."""
    expected = functional.conv3d(*call)
    asked = break_rungs(monkeypatch, "miopen", "taps", "native", "tiles")
    learned = ladder(tmp_path)
    for _ in range(2):
        assert torch.allclose(learned.conv3d(*call), expected)
    assert torch.allclose(ladder(tmp_path).conv3d(*call), expected)
    assert asked == ["miopen", "taps", "native", "tiles"]
    route = RouteStore(tmp_path).get(case_of(call[0], Convolution(*call[1:])))
    assert route.rung == "cpu"
    assert set(route.failed) == {"miopen", "taps", "native", "tiles"}
    assert route.reason.startswith("miopen: MIOpen Error: No suitable algorithm")


def test_when_every_rung_fails_the_last_error_is_raised_and_the_next_call_tries_again(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = ladder()
    with monkeypatch.context() as patch:
        asked = break_rungs(patch, *RUNGS)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="No suitable algorithm"):
                learned.conv3d(*call)
    assert asked == 2 * [name for name in RUNGS if name not in CHOSEN_RUNGS]
    assert torch.equal(learned.conv3d(*call), functional.conv3d(*call))


def test_a_rung_that_worked_may_fail_later(driver: Driver, call: tuple[Any, ...]) -> None:
    learned = ladder()
    expected = learned.conv3d(*call)
    driver.fails = lambda x, weight: True
    assert torch.allclose(learned.conv3d(*call), expected, atol=1e-5)
    assert driver.failed == 1
    learned.conv3d(*call)
    assert driver.failed == 1
    assert list(learned.errors.values()) == [NO_ALGORITHM]


def test_each_kind_of_convolution_has_a_first_call_and_a_rung_of_its_own() -> None:
    announced: list[ConvCase] = []
    learned = ladder(on_first_call=lambda case, rung: announced.append(case))
    x, weight, two = torch.zeros(2, 4, 3, 7, 7), torch.zeros(4, 4, 1, 3, 3), (1, 2, 2)
    calls: list[tuple[Any, ...]] = [
        (x, weight), (x[:1], weight), (x, torch.zeros(8, 4, 1, 3, 3)), (x.double(), weight.double()),
        (x, weight, None, two), (x, weight, None, 1, two), (x, weight, None, 1, 0, two),
        (x[:, :, :1], weight),
    ]  # fmt: skip
    for _ in range(2):
        for call in calls:
            learned.conv3d(*call)
        learned.conv2d(x[:, :, 0], weight[:, :, 0])  # of the sizes of the last one
    cases = [case_of(*parsed) for call in calls if (parsed := parse_call(*call))]
    assert announced == [*cases, replace(cases[-1], is_flat=True)]
    assert len({*announced}) == len(calls) + 1


def test_a_rung_that_is_left_out_is_asked_no_more_until_it_is_back(call: tuple[Any, ...]) -> None:
    learned = ladder()
    for left_out in (), ("miopen",), ():
        learned.leave_out(*left_out)
        learned.conv3d(*call)
    assert learned.successes == {"miopen": 2, "taps": 1}


def test_without_memory_only_the_smaller_rungs_are_asked(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Expect that a lack of memory is not held against a rung that may have room another day."""
    expected = functional.conv3d(*call)
    asked = break_rungs(monkeypatch, "miopen", "taps", "native", text=MEMORY)
    assert torch.allclose(ladder(tmp_path).conv3d(*call), expected)
    assert asked == ["miopen", "taps"]
    route = RouteStore(tmp_path).get(case_of(call[0], Convolution(*call[1:])))
    assert (route.rung, route.failed) == ("tiles", {})
    assert route.reason == f"miopen: {MEMORY}; taps: {MEMORY}"
    assert torch.allclose(ladder(tmp_path).conv3d(*call), expected)
    assert asked == ["miopen", "taps"]


def test_memory_that_sends_a_call_to_the_cpu_is_looked_at_again(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = break_rungs(monkeypatch, "miopen", "taps", "native", "tiles", text=MEMORY)
    learned = ladder(tmp_path)
    for _ in range(2):
        learned.conv3d(*call)
    assert asked == 2 * ["miopen", "taps", "tiles"]
    assert list(tmp_path.iterdir()) == []


def test_without_memory_for_the_result_the_error_is_raised_as_it_is(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rungs(monkeypatch, *RUNGS, text=MEMORY)
    with pytest.raises(RuntimeError, match=r"Tried to allocate 2\.00 GiB"):
        ladder().conv3d(*call)


def test_a_failed_call_holds_no_memory_when_the_next_begins(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []
    plain = RUNGS["taps"].run

    def failing(*call: Any) -> Tensor:
        workspace = torch.zeros(1000)
        workspaces.append(weakref.ref(workspace))
        raise RuntimeError(NO_ALGORITHM)

    def next_one(*call: Any) -> Tensor:
        alive.extend(workspace() is not None for workspace in workspaces)
        return plain(*call)

    learned = ladder()
    learned.conv3d(*call)  # The rung is settled, so that the next call fails on the short path.
    gc.disable()
    try:
        for climbing in (learned, ladder()):
            with monkeypatch.context() as patch:
                patch.setitem(RUNGS, "miopen", Rung("miopen", failing))
                patch.setitem(RUNGS, "taps", Rung("taps", next_one))
                climbing._chosen = dict.fromkeys(climbing._chosen, RUNGS["miopen"])
                climbing.conv3d(*call)
    finally:
        gc.enable()
    assert alive == [False, False, False]


# ---- deaths --------------------------------------------------------------------------------------


def test_a_first_call_is_announced_and_over_and_later_ones_are_not(
    driver: Driver, call: tuple[Any, ...], tmp_path: Path
) -> None:
    reported: list[tuple[str, str]] = []

    def hooks() -> dict[str, Any]:
        return {
            "on_first_call": lambda case, rung: reported.append(("begin", rung)),
            "after_first_call": lambda case, rung: reported.append(("end", rung)),
        }

    driver.fails = lambda x, weight: True
    learned = ladder(tmp_path, **hooks())
    for _ in range(2):
        learned.conv3d(*call)
    assert reported == [("begin", "miopen"), ("end", "miopen"), ("begin", "taps"), ("end", "taps")]
    ladder(tmp_path, **hooks()).conv3d(*call)  # the process before has shown that it works
    assert len(reported) == 4


def test_a_blocked_rung_is_never_asked_again(driver: Driver, call: tuple[Any, ...], tmp_path: Path) -> None:
    case = case_of(call[0], Convolution(*call[1:]))
    learned = ladder(tmp_path)
    learned.conv3d(*call)
    assert len(driver.shapes) == 1
    learned.block(str(case), "miopen", "the engine was ended by SIGABRT")
    for again in (learned, ladder(tmp_path)):
        again.conv3d(*call)
    assert len(driver.shapes) == 1
    with pytest.raises(ValueError, match="warp"):
        learned.block(str(case), "warp", "")


def case_of_size(side: int, **changes: Any) -> ConvCase:
    case = case_of(some_call()[0], Convolution(*some_call()[1:]))
    return replace(case, **{"shape": (1, 3, 4, side, side), **changes})


def avoided(learned: ConvLadder, case: ConvCase) -> set[str]:
    return set(RUNGS) - {*CHOSEN_RUNGS} - {rung.name for rung in learned._order(case)}


def test_after_two_deaths_the_rungs_are_avoided_on_this_card(tmp_path: Path) -> None:
    learned = ladder(tmp_path)
    learned.block(case_of_size(64), "miopen", "SIGABRT")
    assert avoided(learned, case_of_size(128)) == set()
    learned.block(case_of_size(96, stride=(2, 2, 2)), "taps", "SIGABRT")
    for again in (learned, ladder(tmp_path)):
        assert avoided(again, case_of_size(8, dtype="bfloat16")) == {"miopen", "taps"}
        assert avoided(again, case_of_size(128, torch="9.0")) == set()  # another driver may be better


def test_a_rung_that_has_worked_for_a_case_is_not_suspected_there(
    driver: Driver, call: tuple[Any, ...], tmp_path: Path
) -> None:
    case = case_of(call[0], Convolution(*call[1:]))
    learned = ladder(tmp_path)
    learned.conv3d(*call)
    for width in (5, 6, 7):
        learned.block(replace(case, shape=(1, 3, 4, 6, width)), "miopen", "SIGABRT")
    learned.conv3d(*call)
    assert len(driver.shapes) == 2
    ladder(tmp_path).conv3d(*call)
    assert len(driver.shapes) == 2  # what worked on a CPU is not written down
    RouteStore(tmp_path).choose(case, "miopen", "measured")
    ladder(tmp_path).conv3d(*call)
    assert len(driver.shapes) == 3


def test_a_lost_device_is_charged_to_the_first_call_and_raised(
    driver: Driver, call: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect no further call on the lost device; the next process takes the next rung."""
    monkeypatch.setattr(conv, "works", lambda device: False)
    driver.text = "HIP error: an illegal memory access was encountered"
    driver.fails = lambda x, weight: True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        ladder(tmp_path).conv3d(*call)
    assert driver.failed == 1
    route = RouteStore(tmp_path).get(case_of(call[0], Convolution(*call[1:])))
    assert route.deadly == {"miopen": driver.text}
    ladder(tmp_path).conv3d(*call)
    assert driver.failed == 1


def test_a_lost_device_is_not_charged_to_a_call_that_had_worked(
    driver: Driver, call: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = ladder(tmp_path)
    learned.conv3d(*call)
    monkeypatch.setattr(conv, "works", lambda device: False)
    driver.text, driver.fails = "unspecified launch failure", lambda x, weight: True
    with pytest.raises(RuntimeError, match="launch failure"):
        learned.conv3d(*call)
    assert list(tmp_path.iterdir()) == []


def test_on_rocm_what_works_is_remembered(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Expect that a death in a later run is not charged to a rung that has worked."""
    card = "gfx1100", "7.2"
    monkeypatch.setattr(conv, "card_of", lambda device: card)
    announced: list[str] = []
    for _ in range(2):
        ladder(tmp_path, on_first_call=lambda case, rung: announced.append(rung)).conv3d(*call)
    assert announced == ["miopen"]
    assert [route.rung for route in RouteStore(tmp_path).routes("gfx1100").values()] == ["miopen"]


@pytest.mark.parametrize(
    ("computes", "expected", "reason"),
    [
        (functional.conv3d, "kitchen", ""),
        (lambda *call, **others: functional.conv3d(*call, **others) / 0, "miopen", "not finite"),
        (lambda *call, **others: [][0], "miopen", "comfy-kitchen: list index"),
        (None, "miopen", ""),
    ],
    ids=["right", "infinite", "raises", "cannot be imported"],
)
def test_a_radeon_takes_the_kernel_that_needs_no_miopen_unless_it_fails(
    computes: Any, expected: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(conv, "card_of", lambda device: ("gfx1100", "7.2"))
    double = SimpleNamespace(
        fp16_conv3d=lambda x, weight, bias, residual, stride: computes(x, weight, bias, stride=stride)
    )
    monkeypatch.setattr(conv_rungs, "kitchen", lambda: double)
    monkeypatch.setattr(conv_rungs, "is_refused", lambda: computes is None)
    monkeypatch.setattr(conv_rungs, "backend_of", lambda function, arguments: "hip")
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator).half() for shape in ((1, 8, 4, 6, 5), (16, 8, 3, 3, 3), (16,))
    )
    learned = ladder(tmp_path)
    result = learned.conv3d(x, weight, bias, (1, 2, 2), (1, 1, 1))
    torch.testing.assert_close(
        result, functional.conv3d(x, weight, bias, (1, 2, 2), (1, 1, 1)), rtol=2e-3, atol=2e-3
    )
    (route,) = RouteStore(tmp_path).routes("gfx1100").values()
    assert route.rung == expected
    assert reason in "".join(route.failed.values())

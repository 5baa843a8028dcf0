"""Tests that the ladder serves convolutions with code of their own, 2D ones too, and names the others."""

import copy
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cache.conv import case_of
from cache.conv_probe import convolution_work
from cache.conv_rungs import RUNGS, FlatConvolution
from cache.trial import try_candidates
from diffusers_helper.cancel import CancelToken
from diffusers_helper.events import Event, Finished, Warned
from diffusers_helper.miopen_fallback import MIOpenFallbackHandler, initialize_miopen_fallback
from diffusers_helper.runner import Runner
from tests.support.drivers import NO_ALGORITHM, Driver, break_rungs, ladder
from tests.support.jobs import asked_in
from tests.support.making import tiny_request


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


class Cast(nn.Conv3d):
    """A convolution as ComfyUI's: it casts its weights, and may cut the kernel's first frames off."""

    def _conv_forward(  # type: ignore[override]
        self, input: Tensor, weight: Tensor, bias: Tensor | None, autopad: str | None = None
    ) -> Tensor:
        if autopad == "causal_zero":
            weight = weight[:, :, -input.shape[2] :]
        return super()._conv_forward(input, weight, bias)

    def forward(self, input: Tensor, autopad: str | None = None) -> Tensor:
        weight, bias = self.weight.to(input.dtype), None if self.bias is None else self.bias.to(input.dtype)
        return self._conv_forward(input, weight, bias, autopad=autopad)


class Direct(nn.Conv3d):
    """A convolution whose own `forward` calls torch's function."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * functional.conv3d(input=input, weight=self.weight, bias=self.bias, padding=self.padding)


class Twice(nn.Conv3d):
    """A convolution whose own `_conv_forward` calls torch's function."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv3d(
            functional.conv3d(input, weight, bias, 1, 1), weight, bias, padding=(1, 1, 1)
        )


def of_instance() -> nn.Module:
    """Return a module whose `forward` was replaced, as hooks do."""
    module = nn.Conv3d(3, 3, 3, padding=1)
    plain = module.forward
    module.forward = lambda input: plain(input) + 1
    return module


OWN: dict[str, Callable[[], nn.Module]] = {
    "cast": lambda: Cast(3, 3, 3, padding=1),
    "direct": lambda: Direct(3, 3, 3, padding=1),
    "twice": lambda: Twice(3, 3, 3),
    "instance": of_instance,
    "2D": lambda: nn.Conv2d(3, 3, 3, padding=1),
    "2D, same": lambda: nn.Conv2d(3, 3, (2, 4), padding="same", padding_mode="replicate"),
}


@pytest.mark.parametrize("kind", OWN)
def test_modules_with_code_of_their_own_are_served(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(OWN[kind]())
    x = torch.randn(2, 3, 5, 6, 7)[:, :, 0 if kind.startswith("2D") else slice(None)]
    expected, before = module(x), dict(vars(module[0]))
    with MIOpenFallbackHandler(ladder()).install(module) as handler:
        assert torch.equal(module(x), expected)
        assert handler.ladder is not None
        assert handler.ladder.successes["miopen"] == (2 if kind == "twice" else 1)
    assert vars(module[0]) == before
    asked = break_rungs(monkeypatch, "miopen", "taps", "native")
    with MIOpenFallbackHandler(ladder()).install(module):
        found = module(x)
        if kind != "instance":
            assert torch.equal(copy.deepcopy(module)(x), found)
    assert torch.allclose(found, expected, atol=1e-5)
    assert "miopen" in asked
    assert ("taps" in asked) != kind.startswith("2D")
    assert functional.conv3d is torch.conv3d
    assert functional.conv2d is torch.conv2d


def test_a_driver_that_fails_under_casting_code_is_survived(driver: Driver) -> None:
    module, x = Cast(3, 3, 3, padding=(0, 1, 1)), torch.randn(1, 3, 1, 6, 7)
    expected = module(x, autopad="causal_zero")
    driver.fails = lambda x, weight: weight.shape[2] == 1
    with initialize_miopen_fallback().install(module) as handler:
        found = module(x, autopad="causal_zero")
        assert torch.allclose(found, expected, atol=1e-5)
        assert handler.ladder is not None
        assert handler.ladder.successes["taps"] == 1


def test_a_copy_computes_with_its_own_weights() -> None:
    module = Direct(1, 1, 1, bias=False)
    with initialize_miopen_fallback().install(module):
        copied = copy.deepcopy(module)
        copied.weight.data.fill_(3)
        assert copied(torch.ones(1, 1, 1, 1, 1)).item() == 6


def test_what_cannot_be_served_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Special(nn.Conv3d):
        def forward(self, input: Tensor) -> Tensor:
            return input

    module = nn.Sequential(nn.Identity(), Special(1, 1, 1), Direct(1, 1, 1))
    with initialize_miopen_fallback().install(module), caplog.at_level(logging.WARNING):
        for _ in range(2):
            module(torch.ones(1, 1, 1, 1, 1))
    assert [message for message in caplog.messages if "has no fallback" in message] == [
        "[MIOpen Fallback] 1 (Special) has no fallback: its code calls neither conv2d nor conv3d"
    ]


def test_another_threads_convolutions_are_left_alone() -> None:
    class Waiting(nn.Conv3d):
        def forward(self, input: Tensor) -> Tensor:
            thread = threading.Thread(target=functional.conv3d, args=(input, self.weight))
            thread.start()
            thread.join()
            return functional.conv3d(input, self.weight)

    module = Waiting(1, 1, 1)
    with initialize_miopen_fallback().install(module) as handler:
        module(torch.ones(1, 1, 1, 1, 1))
        assert handler.ladder is not None
        assert handler.ladder.attempts["miopen"] == 1


def test_a_failing_2d_convolution_is_remembered_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(1, 4, 9, 8), torch.randn(6, 2, 3, 3)
    call = x, weight, torch.randn(6), (2, 1), 1, (1, 2), 2
    expected, plain = functional.conv2d(*call), functional.conv2d
    failed: list[int] = []

    def failing(x: Tensor, *rest: Any) -> Tensor:
        if x.shape[-1] == 8:
            failed.append(1)
            raise RuntimeError(NO_ALGORITHM)
        return plain(x, *rest)

    monkeypatch.setattr(functional, "conv2d", failing)
    for _ in range(2):
        assert torch.allclose(ladder(tmp_path).conv2d(*call), expected, atol=1e-5)
    assert len(failed) == 2  # the plain call and the one without MIOpen, once
    (text,) = initialize_miopen_fallback(folder=tmp_path).ladder._routes.routes("cpu")  # type: ignore[union-attr]
    case = case_of(
        x.unsqueeze(2), FlatConvolution(weight.unsqueeze(2), None, (1, 2, 1), (0, 1, 1), (1, 1, 2), 2)
    )
    assert str(case) == text
    assert not RUNGS["taps"].supports(case)
    plain_call, in_tiles = try_candidates(
        [(partial(convolution_work, asdict(case), device=x.device), ["miopen", "tiles"])]
    )
    assert plain_call["failed"] == NO_ALGORITHM
    assert "failed" not in in_tiles


@pytest.mark.slow
def test_a_change_of_the_way_in_the_middle_of_a_video_is_told(
    driver: Driver, tiny_model: Path, small_scene: Path, tmp_path: Path
) -> None:
    calls = count()
    driver.fails = lambda x, weight: next(calls) >= 4
    events: list[Event] = []
    runner, request = Runner(), tiny_request(small_scene, model=str(tiny_model), seconds=2.4, steps=1)
    runner.run(asked_in(tmp_path / "job", request), events.append, CancelToken())
    *_, warned, end = events
    assert isinstance(end, Finished)
    assert isinstance(warned, Warned)
    assert "were computed in other ways" in warned.message
    assert "55 dB" in warned.message
    events.clear()
    driver.fails = lambda x, weight: False
    runner.run(asked_in(tmp_path / "next", request), events.append, CancelToken())
    assert isinstance(events[-1], Finished)
    assert not [event for event in events if isinstance(event, Warned)]


@pytest.mark.parametrize("stride", [1, 2, (1, 2, 3), (2,)])
def test_what_torch_explains_it_still_explains(stride: Any) -> None:
    x, weight = torch.ones(1, 1, 4, 4, 4), torch.ones(1, 1, 2, 2, 2)
    assert torch.equal(ladder().conv3d(x, weight, stride=stride), functional.conv3d(x, weight, stride=stride))
    for wrong in ({"stride": (1, 2)}, {"padding": "same", "stride": 2}, {"padding": "some"}):
        with pytest.raises((RuntimeError, ValueError)):
            ladder().conv3d(x, weight, **wrong)

"""A driver that fails on demand, for tests of the convolution ladder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cache.conv import ConvLadder
from cache.conv_routes import RouteStore
from cache.conv_rungs import RUNGS, Rung
from diffusers_helper.miopen_fallback import classify

NO_ALGORITHM = "MIOpen Error: No suitable algorithm was found to execute the required convolution"
MEMORY = "HIP out of memory. Tried to allocate 2.00 GiB"
ONE, NONE = (1, 1, 1), (0, 0, 0)


class Driver:
    """Stands in for a driver: `fails` tells which calls of conv3d give an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails: Callable[[Tensor, Tensor], bool] = lambda x, weight: False
        self.error: BaseException | None = None
        self.text = NO_ALGORITHM
        self.failed = 0
        self.shapes: list[tuple[int, ...]] = []
        self._plain = functional.conv3d
        monkeypatch.setattr(functional, "conv3d", self)

    def __call__(self, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        self.shapes.append(tuple(x.shape))
        if self.fails(x, weight):
            self.failed += 1
            raise self.error or RuntimeError(self.text)
        return self._plain(x, weight, *rest)


def break_rungs(monkeypatch: pytest.MonkeyPatch, *names: str, text: str = NO_ALGORITHM) -> list[str]:
    """Makes rungs fail; the list grows by the name of each that is asked."""
    asked: list[str] = []

    def failing(name: str) -> Callable[..., Tensor]:
        def run(*call: Any) -> Tensor:
            asked.append(name)
            raise RuntimeError(text)

        return run

    for name in names:
        monkeypatch.setitem(RUNGS, name, Rung(name, failing(name), RUNGS[name].supports))
    return asked


def ladder(folder: Path | None = None, **settings: Any) -> ConvLadder:
    return ConvLadder(RouteStore(folder), classify, **settings)


def some_call() -> tuple[Any, ...]:
    """Arguments of a convolution that every rung can do."""
    generator = torch.Generator().manual_seed(3)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((1, 3, 4, 6, 8), (5, 3, 3, 3, 3)))
    return x, weight, torch.randn(5, generator=generator), ONE, ONE, ONE, 1

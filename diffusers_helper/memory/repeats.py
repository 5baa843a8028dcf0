"""Spares the account the operations of a forward pass that it has seen before.

A sampler calls the same network with the same shapes at each step, and the VAE decodes one tile like the
next. What such a pass takes is known after two that agreed; the next ones are checked against the cap as a
whole, before they run, and only what they return is counted. Watching all would cost a tenth of the time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from diffusers_helper.memory.accounting import Account, PassStart


@dataclass(slots=True)
class _Known:
    """Passes of one module with inputs of one kind.

    Attributes:
        taken: the most a pass had more than was there before it, in bytes.
        kept: what was more after it.
        is_sure: whether two passes agreed.
        differs: whether two passes did not, or a later one left something else behind: all are watched then.
    """

    taken: int = -1
    kept: int = -1
    is_sure: bool = False
    differs: bool = False

    def learn(self, taken: int, kept: int) -> None:
        self.is_sure = (taken, kept) == (self.taken, self.kept)
        self.differs = self.taken >= 0 and not self.is_sure
        self.taken, self.kept = taken, kept


@dataclass(slots=True)
class _Running:
    """A pass that has begun."""

    module: nn.Module
    known: _Known
    start: PassStart
    is_spared: bool


@dataclass(slots=True)
class Repeats:
    """What is known of forward passes; for one job, whose networks and attention do not change."""

    account: Account
    _known: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Known]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _running: list[_Running] = field(default_factory=list[_Running])

    @contextmanager
    def of(self, network: nn.Module) -> Iterator[None]:
        """While entered, repeated passes of a network, or of a part that is called by itself, are spared.

        For the thread that has entered the account. A spared pass that would pass the cap raises
        `AccountedOutOfMemory` before it runs.
        """
        hooks: list[Any] = []
        for module in (network, *network.children()):
            hooks += [
                module.register_forward_pre_hook(self._begin, with_kwargs=True),
                module.register_forward_hook(self._end, with_kwargs=True, always_call=True),
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.account.is_watching:
            return
        kinds = self._known.setdefault(module, {})
        known = kinds.setdefault((_kinds(args), _kinds(kwargs)), _Known())
        if known.is_sure:
            self.account.require(known.taken)
            self.account.pause()
        self._running.append(_Running(module, known, self.account.begin_pass(), known.is_sure))

    def _end(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """Also after an exception, of hooks before `_begin` too, with None for a result."""
        if not self._running or self._running[-1].module is not module:
            return
        run = self._running.pop()
        if run.is_spared:
            self.account.resume()
            self.account.adopt(_tensors(result))
        taken, kept = self.account.end_pass(run.start)
        if result is None or run.known.differs:
            return
        if not run.is_spared:
            run.known.learn(taken, kept)
        elif kept != run.known.kept:
            # Something that outlives the pass has changed, as a cache between steps does.
            run.known.is_sure, run.known.differs = False, True


def _kinds(values: Any) -> Any:
    """What decides how much a pass takes: the tensors' shapes and types, and whatever else is comparable."""
    if isinstance(values, Tensor):
        return tuple(values.shape), values.dtype
    if isinstance(values, Mapping):
        return tuple((key, _kinds(value)) for key, value in values.items())
    if isinstance(values, list | tuple):
        return tuple(map(_kinds, values))
    return values if isinstance(values, str | int | float | bool | None) else type(values)


def _tensors(values: Any) -> Iterable[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)

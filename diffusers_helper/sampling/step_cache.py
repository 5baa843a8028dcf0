"""The step caches at work: a network's passes in one section, some of which reuse what earlier ones computed.

`families.step_caches` has the rules. Here are the measurements that the rules are given, and the results of
skipped passes.

diffusers' hooks (0.42) have the same caches but could not be used. FirstBlockCache and TaylorSeer cannot be
told to compute the last step, MagCache lacks a clause of its rule, and all find a model's blocks by names and
classes, among which Helios' are missing. TeaCache and EasyCache are not there at all. Where a hook does the
same, the tests compare the results with its own (`tests/diffusers_helper/sampling/test_step_cache.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from diffusers_helper.families.step_caches import Rule, StepCache
from diffusers_helper.memory.device import Repeat
from diffusers_helper.memory.streaming import replace_forward, streamer_of


class Passes:
    """The runner of a network's passes in one section; this one computes them all, with `repeat` if given."""

    def __init__(self, repeat: Repeat | None = None) -> None:
        self._repeat = repeat

    @property
    def skipped(self) -> int:
        """Return the number of steps so far in which nothing was computed."""
        return 0

    def __call__(self, branch: str, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Return the network's output for `x`, in a pass of guidance of which each step has one."""
        return self._repeat((branch, x.shape), compute) if self._repeat else compute()


@dataclass(frozen=True, slots=True)
class Blocks:
    """A network's blocks, as a step cache sees them.

    Attributes:
        modules: The blocks in the order in which they run. Each takes the hidden states of all tokens first.
        noisy: The number of tokens of the noisy window. They are the last ones, and the network uses no
            others of the last block.
        modulated: Returns the first block's modulated input, given that block and its arguments.
        returned: The number of leading arguments that a block returns changed, as a tuple if there are more
            than one.
    """

    modules: Sequence[nn.Module]
    noisy: int
    modulated: Callable[..., Tensor]
    returned: int = 2


@dataclass
class _Branch:
    """The state of one pass of guidance, with the change of the output per change of the input (`rate`)."""

    rule: Rule
    step: int = -1
    skips: bool = False
    kept: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    computed: int = 0
    rate: float | None = None


class _CachedPasses(Passes, ABC):
    """A runner that skips passes. Its state begins with the section, and each branch has its own."""

    def __init__(self, cache: StepCache, steps: int, magnitudes: Sequence[float]) -> None:
        super().__init__()
        self._cache, self._steps = cache, steps
        self._new_rule = partial(cache.rule, steps, magnitudes)
        self._branches: dict[str, _Branch] = {}
        self._computed: set[int] = set()

    @property
    def skipped(self) -> int:
        begun = 1 + max((branch.step for branch in self._branches.values()), default=-1)
        return begun - len(self._computed)

    def __call__(self, branch: str, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        state = self._branches.setdefault(branch, _Branch(self._new_rule()))
        state.step, state.skips = state.step + 1, False
        result = self._run(state, x, compute)
        if not state.skips:
            self._computed.add(state.step)
            state.computed = state.step
        return result

    @abstractmethod
    def _run(self, state: _Branch, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Return the network's output, computed or not."""

    def _decide(self, state: _Branch, change: float) -> bool:
        """Return whether a step is skipped, given the change of the signal."""
        state.skips = 0 < state.step < self._steps - 1 and state.rule(state.step, change)
        return state.skips


class PassesByOutput(_CachedPasses):
    """A runner that skips the network as a whole."""

    def _run(self, state: _Branch, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        kept, is_line = state.kept, self._cache.reuse == "line"
        if self._decide(state, self._foretold(state, x) if self._cache.signal else 0.0):
            if is_line:
                if "slope" not in kept:
                    return kept["output"]
                return kept["output"] + kept["slope"] * (state.step - state.computed)
            return x + (kept["output"] - kept["x"])
        output = compute()
        if is_line and kept:
            kept["slope"] = (output - kept["output"]) / (state.step - state.computed)
        elif not is_line:
            if kept:
                moved = _size(x - kept["x"])
                state.rate = _size(output - kept["output"]) / moved if moved else None
            kept["x"] = x
        kept["output"] = output
        return output

    def _foretold(self, state: _Branch, x: Tensor) -> float:
        """Return the change of the output since the last computed step, if its rate is what it was there."""
        if state.rate is None:
            return float("inf")
        return state.rate * _size(x - state.kept["x"]) / _size(state.kept["output"])


class PassesByBlocks(_CachedPasses):
    """A runner that skips the network's blocks, and adds what they added before."""

    def __init__(
        self, cache: StepCache, steps: int, magnitudes: Sequence[float], network: nn.Module, blocks: Blocks
    ) -> None:
        super().__init__(cache, steps, magnitudes)
        self._blocks, self._streamer = blocks, streamer_of(network)
        self._state = _Branch(self._new_rule())

    def _run(self, state: _Branch, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        self._state = state
        return compute()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Let the cache decide in the network's first block within the context."""
        first, *others = self._blocks.modules
        with ExitStack() as undo:
            undo.callback(replace_forward(first, partial(self._first, first, first.forward)))
            for block in others:
                run = self._last if block is others[-1] else self._middle
                undo.callback(replace_forward(block, partial(run, block.forward)))
            if self._streamer is not None:
                undo.enter_context(self._streamer.on_demand())
            yield

    def _first(self, block: nn.Module, forward: Callable[..., Any], *args: Any) -> Any:
        """Decide, and run the first block if it is needed for that or is not skipped."""
        state, signal, streamer = self._state, self._cache.signal, self._streamer
        if not signal and self._decide(state, 0.0):
            return self._skipped(state, args)
        with streamer.first_block(block) if streamer else nullcontext():
            result = None
            if signal == "first block":
                result = forward(*args)
                self._measure(state, _hidden(result) - args[0])
            elif signal:
                self._measure(state, self._blocks.modulated(block, *args))
            if state.skips:
                return self._skipped(state, args if result is None else _states(result))
            entered = args[0] if result is None else _hidden(result)
            # What was added before is not needed any more. A view would keep the states of all tokens.
            state.kept["added"] = self._noisy(entered).clone()
            if streamer is not None:
                streamer.go_on()
            return forward(*args) if result is None else result

    def _measure(self, state: _Branch, signal: Tensor) -> None:
        """Decide by the change of the signal."""
        earlier = state.kept.get("signal")
        # The measure of FramePack's TeaCache and of diffusers' FirstBlockCache
        change = (
            ((signal - earlier).abs().mean() / earlier.abs().mean()).item() if earlier is not None else 0.0
        )
        if not self._decide(state, change) or self._cache.signal == "modulated":
            state.kept["signal"] = signal

    def _middle(self, forward: Callable[..., Any], *args: Any) -> Any:
        return self._given(args) if self._state.skips else forward(*args)

    def _last(self, forward: Callable[..., Any], *args: Any) -> Any:
        state = self._state
        if state.skips:
            return self._given(args)
        result = forward(*args)
        state.kept["added"] = self._noisy(_hidden(result)) - state.kept["added"]
        return result

    def _skipped(self, state: _Branch, states: Sequence[Any]) -> Any:
        """Return what the last block is taken to return: the states that enter, and what was added before."""
        return self._given((self._noisy(states[0]) + state.kept["added"], *states[1:]))

    def _given(self, states: Sequence[Any]) -> Any:
        """Return these states as a block returns them."""
        return tuple(states[: self._blocks.returned]) if self._blocks.returned > 1 else states[0]

    def _noisy(self, hidden: Tensor) -> Tensor:
        return hidden[:, -self._blocks.noisy :]


@contextmanager
def open_passes(
    cache: StepCache | None, steps: int, magnitudes: Sequence[float], network: nn.Module, blocks: Blocks,
    repeat: Repeat | None = None,
) -> Iterator[Passes]:  # fmt: skip
    """Yield the runner of a network's passes in one section, which computes all without a step cache.

    The device's `repeat` is for passes in which no weights are copied.
    """
    if cache is None:
        yield Passes(None if streamer_of(network) else repeat)
    elif cache.reuse != "blocks":
        yield PassesByOutput(cache, steps, magnitudes)
    else:
        passes = PassesByBlocks(cache, steps, magnitudes, network, blocks)
        with passes.attached():
            yield passes


def _states(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple) else (result,)


def _hidden(result: Any) -> Tensor:
    return _states(result)[0]


def _size(tensor: Tensor) -> float:
    return tensor.abs().mean().item()

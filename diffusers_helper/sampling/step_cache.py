"""The step caches at work: a network's passes in one section, some of which reuse what earlier ones computed.

`families.step_caches` has the rules. diffusers' hooks (0.42) cannot be used: FirstBlockCache and TaylorSeer
cannot be told to compute the last step, MagCache lacks a clause of its rule, TeaCache and EasyCache are
missing, and none of them finds Helios' blocks. Where a hook does the same, the tests compare the results.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from cache.replaced import replace_forward
from diffusers_helper.families.step_caches import Rule, StepCache
from diffusers_helper.memory.device import Repeat
from diffusers_helper.memory.streaming import streamer_of


class Passes:
    """The runner of a network's passes in one section. This one computes them all, with `repeat` if any."""

    def __init__(self, repeat: Repeat | None = None) -> None:
        self._repeat = repeat

    @property
    def skipped(self) -> int:
        return 0

    def __call__(self, branch: str, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Run one pass of guidance, named by `branch`. Each step has one pass of each branch."""
        return self._repeat((branch, x.shape), compute) if self._repeat else compute()


@dataclass(frozen=True, slots=True)
class Blocks:
    """A network's blocks in their order. Each takes the hidden states of all tokens first.

    The `num_noisy_tokens` are the last ones, the only ones of the last block's output that are used.
    `modulated_input` takes the first block and its arguments. A block returns `num_outputs` of its leading
    arguments changed, as a tuple if there are several.
    """

    modules: Sequence[nn.Module]
    num_noisy_tokens: int
    modulated_input: Callable[..., Tensor]
    num_outputs: int = 2


@dataclass
class _Branch:
    """The state of one pass of guidance; `change_rate` is the output's change per change of the input."""

    rule: Rule
    step: int = -1
    is_skipped: bool = False
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    last_computed: int = 0
    change_rate: float | None = None


class _CachedPasses(Passes, ABC):
    """A runner that skips passes. Its state begins with the section, and each branch has its own."""

    def __init__(self, cache: StepCache, steps: int, mag_ratios: Sequence[float]) -> None:
        super().__init__()
        self._cache = cache
        self._steps = steps
        self._new_rule = partial(cache.rule, steps, mag_ratios)
        self._branches: dict[str, _Branch] = {}
        self._computed_steps: set[int] = set()

    @property
    def skipped(self) -> int:
        num_started = 1 + max((branch.step for branch in self._branches.values()), default=-1)
        return num_started - len(self._computed_steps)

    def __call__(self, branch: str, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        state = self._branches.setdefault(branch, _Branch(self._new_rule()))
        state.step += 1
        result = self._run(state, x, compute)
        if not state.is_skipped:
            self._computed_steps.add(state.step)
            state.last_computed = state.step
        return result

    @abstractmethod
    def _run(self, state: _Branch, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        """Compute the network's output for `x`, or take one in place of it."""

    def _decide(self, state: _Branch, change: float) -> bool:
        state.is_skipped = 0 < state.step < self._steps - 1 and state.rule(state.step, change)
        return state.is_skipped


class PassesByOutput(_CachedPasses):
    def _run(self, state: _Branch, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        tensors = state.tensors
        is_line = self._cache.reuse == "line"
        if self._decide(state, self._predicted_change(state, x) if self._cache.signal else 0.0):
            if is_line:
                if "slope" not in tensors:
                    return tensors["output"]
                return tensors["output"] + tensors["slope"] * (state.step - state.last_computed)
            return x + (tensors["output"] - tensors["x"])
        output = compute()
        if is_line and tensors:
            tensors["slope"] = (output - tensors["output"]) / (state.step - state.last_computed)
        elif not is_line:
            if tensors:
                input_change = _mean_abs(x - tensors["x"])
                output_change = _mean_abs(output - tensors["output"])
                state.change_rate = output_change / input_change if input_change else None
            tensors["x"] = x
        tensors["output"] = output
        return output

    def _predicted_change(self, state: _Branch, x: Tensor) -> float:
        if state.change_rate is None:
            return float("inf")
        return state.change_rate * _mean_abs(x - state.tensors["x"]) / _mean_abs(state.tensors["output"])


class PassesByBlocks(_CachedPasses):
    """A runner that skips the network's blocks, and adds what they added in the last computed step."""

    def __init__(
        self, cache: StepCache, steps: int, mag_ratios: Sequence[float], network: nn.Module, blocks: Blocks
    ) -> None:
        super().__init__(cache, steps, mag_ratios)
        self._blocks, self._streamer = blocks, streamer_of(network)
        self._state = _Branch(self._new_rule())

    def _run(self, state: _Branch, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        self._state = state
        return compute()

    @contextmanager
    def attached(self) -> Iterator[None]:
        first, *others = self._blocks.modules
        with ExitStack() as stack:
            stack.callback(replace_forward(first, partial(self._first, first, first.forward)))
            for block in others:
                run = self._last if block is others[-1] else self._middle
                stack.callback(replace_forward(block, partial(run, block.forward)))
            if self._streamer is not None:
                stack.enter_context(self._streamer.on_demand())
            yield

    def _first(self, block: nn.Module, forward: Callable[..., Any], *args: Any) -> Any:
        """Decide about the step. Run the first block if the decision needs it or the step is computed."""
        state = self._state
        signal = self._cache.signal
        streamer = self._streamer
        if not signal and self._decide(state, 0.0):
            return self._skipped_outputs(state, args)
        with streamer.first_block(block) if streamer else nullcontext():
            outputs = None
            if signal == "first block":
                outputs = forward(*args)
                self._measure(state, _hidden_states(outputs) - args[0])
            elif signal:
                self._measure(state, self._blocks.modulated_input(block, *args))
            if state.is_skipped:
                return self._skipped_outputs(state, args if outputs is None else _as_sequence(outputs))
            hidden_states = args[0] if outputs is None else _hidden_states(outputs)
            # This replaces what was added before. A view would keep the states of all tokens.
            state.tensors["added"] = self._noisy_tokens(hidden_states).clone()
            if streamer is not None:
                streamer.continue_pass()
            return forward(*args) if outputs is None else outputs

    def _measure(self, state: _Branch, signal: Tensor) -> None:
        previous = state.tensors.get("signal")
        # The measure of FramePack's TeaCache and of diffusers' FirstBlockCache
        change = 0.0
        if previous is not None:
            change = ((signal - previous).abs().mean() / previous.abs().mean()).item()
        if not self._decide(state, change) or self._cache.signal == "modulated":
            state.tensors["signal"] = signal

    def _middle(self, forward: Callable[..., Any], *args: Any) -> Any:
        return self._as_block_outputs(args) if self._state.is_skipped else forward(*args)

    def _last(self, forward: Callable[..., Any], *args: Any) -> Any:
        if self._state.is_skipped:
            return self._as_block_outputs(args)
        outputs = forward(*args)
        tensors = self._state.tensors
        tensors["added"] = self._noisy_tokens(_hidden_states(outputs)) - tensors["added"]
        return outputs

    def _skipped_outputs(self, state: _Branch, inputs: Sequence[Any]) -> Any:
        return self._as_block_outputs((self._noisy_tokens(inputs[0]) + state.tensors["added"], *inputs[1:]))

    def _as_block_outputs(self, outputs: Sequence[Any]) -> Any:
        return tuple(outputs[: self._blocks.num_outputs]) if self._blocks.num_outputs > 1 else outputs[0]

    def _noisy_tokens(self, hidden_states: Tensor) -> Tensor:
        return hidden_states[:, -self._blocks.num_noisy_tokens :]


@contextmanager
def open_passes(
    cache: StepCache | None, steps: int, mag_ratios: Sequence[float], network: nn.Module, blocks: Blocks,
    repeat: Repeat | None = None,
) -> Iterator[Passes]:  # fmt: skip
    """Yield the runner of a network's passes. `repeat` is used for passes in which no weights are copied."""
    if cache is None:
        yield Passes(None if streamer_of(network) else repeat)
    elif cache.reuse != "blocks":
        yield PassesByOutput(cache, steps, mag_ratios)
    else:
        passes = PassesByBlocks(cache, steps, mag_ratios, network, blocks)
        with passes.attached():
            yield passes


def _as_sequence(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _hidden_states(outputs: Any) -> Tensor:
    return _as_sequence(outputs)[0]


def _mean_abs(tensor: Tensor) -> float:
    return tensor.abs().mean().item()

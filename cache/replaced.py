"""Other functions in place of those of torch, and of a module's own."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

# The attribute of a network whose blocks are streamed: each one's own function, which the streaming calls
BENEATH = "forwards_beneath"


class ReplacedFunctions(TorchFunctionMode):
    """A context with other functions in place of some of torch's.

    Their own calls reach torch, since a mode is off while it handles a call.
    """

    def __init__(self, functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions
        self.was_called = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        replacement = self._functions.get(func)
        self.was_called |= replacement is not None
        return (replacement or func)(*args, **(kwargs or {}))


def replace_beneath(network: nn.Module, block: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Replace a block's own function as `replace_forward` does, beneath the streaming of its weights."""
    forwards: dict[nn.Module, Any] = vars(network).get(BENEATH, {})
    if block not in forwards:
        return replace_forward(block, forward)
    previous, forwards[block] = forwards[block], forward
    return partial(forwards.__setitem__, block, previous)


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Let a module run `forward` in place of its own function, and return a function that undoes this."""
    attributes: dict[str, Any] = module.__dict__
    previous = attributes.get("forward")
    attributes["forward"] = forward

    def undo() -> None:
        if previous is None:
            del attributes["forward"]
        else:
            attributes["forward"] = previous

    return undo

"""A context in which other functions compute what this thread asks torch for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


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

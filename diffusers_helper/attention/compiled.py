"""The blocks of a transformer as torch compiles them, each class of blocks once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from diffusers_helper.memory.streaming import replace_beneath


@contextmanager
def compiled_blocks(
    network: nn.Module, blocks: Iterable[nn.Module], backend: Any = "inductor"
) -> Iterator[None]:
    """Let blocks run as torch compiles them, beneath the streaming of their weights.

    diffusers' `compile_repeated_blocks` names no blocks for FramePack, and compiles what streaming puts
    around a block, too.
    """
    with ExitStack() as restored:
        for block in blocks:
            forward = partial(_compiled(type(block), backend), block)
            restored.callback(replace_beneath(network, block, forward))
        yield


@cache
def _compiled(kind: type[nn.Module], backend: Any) -> Callable[..., Any]:
    return torch.compile(kind.forward, backend=backend)

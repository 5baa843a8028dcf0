"""Cancel inside a forward pass: every block of a module looks at the token before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from diffusers_helper.cancel import CancelToken


@contextmanager
def cancellable(module: nn.Module, cancel: CancelToken) -> Iterator[None]:
    """While entered, the module's forward pass raises GenerationCancelled within one block of a cancel.

    Blocks are the members of every `nn.ModuleList`: transformer layers, encoder layers, and the ResNets of
    the VAE, so that each of its tiles is left early too.
    """
    lists = (part for part in module.modules() if isinstance(part, nn.ModuleList))
    # The VAE's lists of attentions hold None where it has none.
    blocks = {block for members in lists for block in members if isinstance(block, nn.Module)}
    hooks = [block.register_forward_pre_hook(lambda *_: cancel.check()) for block in blocks]
    try:
        cancel.check()
        yield
    finally:
        for hook in hooks:
            hook.remove()

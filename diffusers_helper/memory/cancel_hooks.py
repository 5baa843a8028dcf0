"""The cancellation inside a forward pass, where every block of a module checks the token before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from diffusers_helper.cancel import CancelToken


@contextmanager
def cancellable(module: nn.Module, cancel: CancelToken) -> Iterator[None]:
    """Let the module's forward pass raise GenerationCancelled within one block of a cancel while inside.

    Blocks are the members of every `nn.ModuleList` and `nn.Sequential`: transformer layers, encoder layers,
    and the ResNets of the VAE, so that each of its tiles can be left early too.
    """
    lists = (part for part in module.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    # The VAE's lists of attentions contain None where it has no attention.
    blocks = {block for members in lists for block in members if isinstance(block, nn.Module)}
    hooks = [block.register_forward_pre_hook(lambda *_: cancel.check()) for block in blocks]
    try:
        cancel.check()
        yield
    finally:
        for hook in hooks:
            hook.remove()

"""Cancellation within a forward pass, by hooks that check the token before each block of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from diffusers_helper.cancel import CancelToken


@contextmanager
def cancellable(module: nn.Module, cancel: CancelToken) -> Iterator[None]:
    """Make the module's forward pass raise GenerationCancelled at the next block after a cancel.

    Blocks are the members of every `nn.ModuleList` and `nn.Sequential`: transformer layers, encoder layers,
    and the residual blocks of the VAE, so the VAE can stop within a tile.
    """
    lists = (part for part in module.modules() if isinstance(part, nn.ModuleList | nn.Sequential))
    # The VAE's lists of attention modules contain None where there is no attention.
    blocks = {block for members in lists for block in members if isinstance(block, nn.Module)}
    hooks = [block.register_forward_pre_hook(lambda *_: cancel.check()) for block in blocks]
    try:
        cancel.check()
        yield
    finally:
        for hook in hooks:
            hook.remove()

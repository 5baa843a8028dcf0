"""The token that asks a running job to end, because it is paused or cancelled. Each job has its own.

`within` is where the loop stops: at the next block of the network that works, in any stage.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from diffusers_helper.errors import GenerationCancelled


class CancelToken:
    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        if self._event.is_set():
            raise GenerationCancelled

    @contextmanager
    def within(self, network: Any) -> Generator[None]:
        """Make the network's forward pass raise GenerationCancelled at the next block after a cancel.

        Blocks are the members of every `nn.ModuleList` and `nn.Sequential`, so the VAE can stop within a
        tile.
        """

        def check(*_: Any) -> None:
            self.check()

        lists = (module for module in network.modules() if hasattr(module.__class__, "__iter__"))
        # Some lists hold parameters or names, and the VAE's have None where there is no attention.
        blocks = {block for items in lists for block in items if hasattr(block, "register_forward_pre_hook")}
        hooks = [block.register_forward_pre_hook(check) for block in blocks]
        try:
            self.check()
            yield
        finally:
            for hook in hooks:
                hook.remove()

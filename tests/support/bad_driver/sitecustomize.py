"""Put on an engine's PYTHONPATH, this makes one convolution fail as drivers do, from outside the product.

BAD_DRIVER_FAULT is `raise`, `abort`, `sleep` or `kill` (the first time only). The convolution is the VAE
decoder's first one for the longest stretch, as called through `torch.nn.functional.conv3d`. Each failing call
adds a byte to the file that BAD_DRIVER_CALLS names.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_FRAMES = 7  # with the two that the decoder puts in front
_TEXT = "MIOpen Error: /MIOpen/src/ocl/convolutionocl.cpp:516: No suitable algorithm was found to execute"


class _Patched(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        plain = module.conv3d

        def conv3d(x: Any, weight: Any, *rest: Any) -> Any:
            if tuple(weight.shape[1:]) == (16, 3, 3, 3) and x.shape[2] == _FRAMES:
                _fail()
            return plain(x, weight, *rest)

        module.conv3d = conv3d


def _fail() -> None:
    fault, calls = os.environ["BAD_DRIVER_FAULT"], Path(os.environ["BAD_DRIVER_CALLS"])
    if fault == "kill" and calls.exists():
        return
    with calls.open("ab") as file:
        file.write(b"x")
    if fault == "raise":
        raise RuntimeError(_TEXT)
    if fault == "abort":
        os.abort()
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch.nn.functional":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patched(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())

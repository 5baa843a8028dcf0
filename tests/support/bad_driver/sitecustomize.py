"""A convolution that fails like those of drivers, installed in an engine by its PYTHONPATH.

BAD_DRIVER_FAULT selects the fault; without it nothing fails. With `raise`, `abort`, `sleep` or `kill` (the
first time only), the VAE decoder's first convolution over the most frames fails in that way. With `texts`,
all of the decoder's convolutions with kernels of 3 x 3 x 3 raise errors, a different one for each shape,
whose texts are a JSON list in BAD_DRIVER_TEXTS. With `large`, such convolutions, also the encoder's, write
BAD_DRIVER_SAYS to standard error and abort if their input is at least BAD_DRIVER_SIDE pixels high or wide.
With `shape`, convolutions abort if their input has the shape in BAD_DRIVER_SHAPE, such as `1x3x5x6x8`, and
with `shape sleep` they never end. With
`flat raise` and `flat abort`, 2D convolutions of at least 8 pixels fail, unless MIOpen is off. With `lose`
(the first time only), the process loses its card in the transformer's second pass: a GPU by a failed
assertion on it, a CPU by an error after which it counts as lost. Each failing call adds a byte to the file
that BAD_DRIVER_CALLS names.

BAD_DRIVER_FRAMES names a folder that receives the final frames of each section, before they are encoded, as
`0001.npy` and so on.
"""

import json
import os
import signal
import sys
import time
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_FRAMES = 7  # includes the two frames that the decoder puts in front
_FLAT_SIDE = 8
_lost: list[bool] = []
_TEXT = "MIOpen Error: /MIOpen/src/ocl/convolutionocl.cpp:516: No suitable algorithm was found to execute"


def _break_convolutions(module: Any) -> None:
    fault = os.environ.get("BAD_DRIVER_FAULT")
    if fault is None:
        return
    plain, plain_flat = module.conv3d, module.conv2d
    texts: list[str] = json.loads(os.environ.get("BAD_DRIVER_TEXTS", "[]"))
    shapes: dict[Any, int] = {}
    decoding, patched = False, 0

    def conv3d(x: Any, weight: Any, *rest: Any) -> Any:
        nonlocal decoding, patched
        kernel = tuple(weight.shape[1:])
        # The encoder begins with a convolution of 3 x 3 x 3.
        decoding = kernel == (16, 3, 3, 3) or (decoding and kernel != (3, 3, 3, 3))
        if fault.startswith("shape"):
            if "x".join(map(str, x.shape)) == os.environ["BAD_DRIVER_SHAPE"]:
                _fail(fault.removeprefix("shape").strip() or "abort")
        elif fault == "large":
            if kernel[1:] == (3, 3, 3) and max(x.shape[3:]) >= int(os.environ["BAD_DRIVER_SIDE"]):
                sys.stderr.write(os.environ.get("BAD_DRIVER_SAYS", ""))
                sys.stderr.flush()
                _fail("abort")
        elif fault in ("raise", "abort", "sleep", "kill"):
            if kernel == (16, 3, 3, 3) and x.shape[2] == _FRAMES:
                _fail(fault)
        elif fault == "lose":
            patched += kernel[1:] == (1, 2, 2)  # twice in each pass
            if patched == 3:
                _lose(x)
        elif fault == "texts" and decoding and kernel[1:] == (3, 3, 3):
            _count()
            number = shapes.setdefault((x.shape, weight.shape), len(shapes))
            raise RuntimeError(texts[number % len(texts)])
        return plain(x, weight, *rest)

    def conv2d(x: Any, weight: Any, *rest: Any) -> Any:
        from torch.backends import cudnn  # under ROCm, this is the switch of MIOpen

        if fault.startswith("flat ") and cudnn.enabled and max(x.shape[2:]) >= _FLAT_SIDE:
            _fail(fault.removeprefix("flat "))
        return plain_flat(x, weight, *rest)

    module.conv3d, module.conv2d = _as_torchs(conv3d), _as_torchs(conv2d)


def _as_torchs(function: Any) -> Any:
    """Return a stand-in for a function of torch, whose calls a `TorchFunctionMode` sees as torch's own."""

    def call(*given: Any) -> Any:
        from torch.overrides import handle_torch_function, has_torch_function

        return handle_torch_function(call, given, *given) if has_torch_function(given) else function(*given)

    return call


def _fail(fault: str) -> None:
    if fault == "kill" and Path(os.environ["BAD_DRIVER_CALLS"]).exists():
        return
    _count()
    if fault == "raise":
        raise RuntimeError(_TEXT)
    if fault == "abort":
        os.abort()
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


def _lose(x: Any) -> None:
    import torch

    if Path(os.environ["BAD_DRIVER_CALLS"]).exists():
        return
    _count()
    if x.is_cuda:
        torch._assert_async(torch.zeros((), device=x.device))
        torch.cuda.synchronize()
    _lost.append(True)
    raise RuntimeError("CUDA error: unspecified launch failure")


def _lose_card(module: Any) -> None:
    plain = module.works
    module.works = lambda device: not _lost and plain(device)


def _count() -> None:
    with Path(os.environ["BAD_DRIVER_CALLS"]).open("ab") as file:
        file.write(b"x")


def _keep_frames(module: Any) -> None:
    folder = os.environ.get("BAD_DRIVER_FRAMES")
    if folder is None:
        return
    plain = module.GrowingVideo.add_section

    def add_section(video: Any, final: Any, pending: Any, **options: Any) -> Path:
        import numpy as np

        np.save(Path(folder, f"{video.sections + 1:04}.npy"), final)
        return plain(video, final, pending, **options)

    module.GrowingVideo.add_section = add_section


_PATCHES = {
    "torch.nn.functional": _break_convolutions, "diffusers_helper.output.video": _keep_frames,
    "cache.conv": _lose_card,
}  # fmt: skip


class _Patched(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _PATCHES[module.__name__](module)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _PATCHES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patched(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
for name in _PATCHES.keys() & sys.modules.keys():  # in a fork
    _PATCHES[name](sys.modules[name])

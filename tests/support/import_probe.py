"""A program that imports modules and reports every side effect of that.

    python import_probe.py REPORT WARM_UP MODULES

REPORT is the file that receives a JSON object with the findings. WARM_UP are third-party packages, which are
imported before anything is watched, and MODULES are modules of the product; both are separated by commas.
An effect is reported with the module that was asked for when it appeared, which may only import its cause.
"""

import contextlib
import importlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
LOUD_EVENTS = (
    "socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen", "os.system", "os.fork",
    "os.mkdir", "os.rename", "os.remove", "shutil.copyfile", "sqlite3.connect", "os.putenv", "os.unsetenv",
)  # fmt: skip


class Watch:
    """A watcher of the interpreter's audit events and of the process's state during one import."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.module = ""
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.module:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and str(path) != os.devnull:
                self.findings.append(f"{self.module} opened {path} for writing")
        elif event in LOUD_EVENTS:
            self.findings.append(f"{self.module} did {event}{arguments!r:.300}")

    def run(self, module: str) -> None:
        before = state()
        with caught_output() as output:
            self.module = module
            try:
                importlib.import_module(module)
            except (Exception, SystemExit):  # noqa: BLE001 - it is reported in full, and the probe goes on
                self.findings.append(f"{module} cannot be imported:\n{traceback.format_exc()}")
            finally:
                self.module = ""
        if output:
            self.findings.append(f"{module} printed {output[0]!r:.300}")
        for name, value in state().items():
            if value != before[name]:
                self.findings.append(f"{module} changed {name} from {before[name]!r:.300} to {value!r:.300}")


@contextlib.contextmanager
def caught_output() -> Iterator[list[str]]:
    """Collect the text that is written to stdout and stderr within the context, also by C code."""
    output: list[str] = []
    streams = (sys.stdout, sys.stderr)
    kept = [os.dup(stream.fileno()) for stream in streams]
    with tempfile.TemporaryFile() as file:
        for stream in streams:
            os.dup2(file.fileno(), stream.fileno())
        try:
            yield output
        finally:
            for stream, descriptor in zip(streams, kept, strict=True):
                stream.flush()
                os.dup2(descriptor, stream.fileno())
                os.close(descriptor)
            file.seek(0)
            output.extend(text for text in [file.read().decode(errors="replace")] if text)


def state() -> dict[str, object]:
    """Return the state that an import must not change."""
    found: dict[str, object] = {
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),
        "the files": sorted(str(path) for path in Path.cwd().parent.rglob("*")),
        "the threads": sorted(thread.name for thread in threading.enumerate()),
        "the signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "the log's handlers": list(logging.getLogger().handlers),
        "the log's level": logging.getLogger().level,
        "sys.path": list(sys.path),
    }
    if "torch" in sys.modules:
        found |= torch_state()
    return found


def torch_state() -> dict[str, object]:
    import torch

    patched = (torch.nn.Module, torch.nn.Conv3d, torch.nn.Linear, torch.nn.LayerNorm, torch.nn.functional)
    return {
        "the device": torch.cuda.is_initialized(),
        "torch's defaults": (
            torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark, torch.initial_seed(),
        ),
        "torch's functions": [
            (name, id(value)) for owner in patched for name, value in vars(owner).items() if callable(value)
        ],
    }  # fmt: skip


def main(report: str, warm_up: str, modules: str) -> None:
    for package in filter(None, warm_up.split(",")):
        importlib.import_module(package)
    watch = Watch()
    for module in modules.split(","):
        watch.run(module)
    result = {"findings": watch.findings, "loaded": sorted({name.split(".")[0] for name in sys.modules})}
    Path(report).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

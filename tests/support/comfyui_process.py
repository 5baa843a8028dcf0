"""The real ComfyUI in a process of its own, with the nodes, models of toy size and an empty folder."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from tests.support.comfyui_client import Server, wait_until
from tests.support.layers import ROOT

COMFYUI = os.environ.get("COMFYUI_ROOT", "")
PYTHON = os.environ.get("COMFYUI_PYTHON", sys.executable)
ABSENT = "COMFYUI_ROOT names no checkout of ComfyUI"


def install(base: Path) -> None:
    """Put the nodes into a folder as the command does."""
    command = [sys.executable, "-m", "app", "install-comfyui-nodes", str(base)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


@contextmanager
def running(
    base: Path, *flags: str, place: Callable[[Path], None] = install, has_page: bool = False
) -> Iterator[Server]:
    """Start ComfyUI in a new folder, where `place` puts the nodes, and end it afterwards.

    Args:
        has_page: Whether to serve ComfyUI's own page, which is a package of its Python, and not an empty one.
    """
    for name in ("custom_nodes", "input", "output", "temp", "user", "front", "models"):
        (base / name).mkdir()
    (base / "front" / "index.html").write_text("<html></html>")
    shutil.copy(Path(COMFYUI, "comfyui_version.py"), base)
    shutil.copy(ROOT / "tests/support/comfyui_toys.py", base / "custom_nodes")
    Image.new("RGB", (96, 64), (200, 40, 40)).save(base / "input" / "start.png")
    place(base)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = base / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PYTHON, str(ROOT / "tests/support/comfyui_server.py"), COMFYUI, str(base), *_flags(port), *flags,
             *(() if has_page else ("--front-end-root", str(base / "front")))],
            stdout=output, stderr=output, cwd=base,
        )  # fmt: skip
        server = Server(base, port)
        try:
            wait_until(lambda: server.answers() or process.poll() is not None)
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            yield server
        finally:
            process.terminate()
            process.wait(30)


def _flags(port: int) -> tuple[str, ...]:
    flags = ("--listen", "127.0.0.1", "--port", str(port), "--disable-auto-launch", "--disable-api-nodes")
    has_database = "--database-url" in Path(COMFYUI, "comfy/cli_args.py").read_text(encoding="utf-8")
    return (*flags, "--database-url", "sqlite:///:memory:") if has_database else flags

"""A local double of the hub: a server with a published model's files that can be told to fail."""

import hashlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from diffusers_helper.models import downloads
from diffusers_helper.models.registry import ModelInfo
from tests.support.weights import PAGE

CHUNK = 32768
LIGHT_BYTES = 3 * 2**20  # the weights of each part in `light_hub`


class Hub(ThreadingHTTPServer):
    """The server.

    Attributes:
        broken: Bytes after which a file's connection is closed, once.
        pages: Files in whose place a web page is served.
        sizes: Sizes that the list of files gives in place of the true ones.
        liars: What answers in place of the server, by a file's name, or "tree" for the list of files.
        gate: Cleared to hold back what lies behind the first `held_at` bytes of each large file.
        held_at: That number of bytes; the first chunk by default.
        asked: What was asked for: the file's path, and the first byte.
        tokens: What the requests have given to prove who sends them.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.broken: dict[str, int] = {}
        self.pages: set[str] = set()
        self.sizes: dict[str, object] = {}
        self.liars: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.held_at = CHUNK
        self.held = threading.Event()
        self.asked: list[tuple[str, int]] = []
        self.tokens: set[str] = set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing about clients that have left."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def begins(self, path: str) -> list[int]:
        """Return the first bytes that were asked for of a file, one for each request."""
        return [begin for asked, begin in self.asked if asked.endswith(path)]


@contextmanager
def hub_of(cache: Path, info: ModelInfo, folder: Path) -> Iterator[Hub]:
    """Serve the model that `write_published` has put into a hub cache, from `folder`."""
    for source in {(one.location, str(one.revision)) for one in info.components.values()}:
        origin = cache / ("models--" + source[0].replace("/", "--")) / "snapshots" / source[1]
        target = folder / source[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(origin)
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.gate.set()
        hub.shutdown()
        thread.join()
        hub.server_close()


def write_light_parts(cache: Path, info: ModelInfo, size: int) -> None:
    """Fill a hub cache with files that look like a model's parts, with weights of so many random bytes."""
    numbers = random.Random(5)
    for part, source in info.components.items():
        folder = cache / ("models--" + source.location.replace("/", "--"))
        folder = folder / "snapshots" / str(source.revision) / source.subfolder
        folder.mkdir(parents=True, exist_ok=True)
        kind = {"tokenizer": "tokenizer_", "tokenizer_2": "tokenizer_", "feature_extractor": "preprocessor_"}
        (folder / f"{kind.get(part, '')}config.json").write_text("{}", encoding="utf-8")
        if part in kind:
            (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
        else:
            (folder / "model.safetensors").write_bytes(numbers.randbytes(size))


@contextmanager
def light_hub(folder: Path, info: ModelInfo, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, Path]]:
    """Serve light parts of a model, held back in their middle, and yield the hub and this machine's cache.

    The disk of this machine has much room, whatever is true.
    """
    cache = folder / "home" / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**40))
    write_light_parts(folder / "away", info, LIGHT_BYTES)
    with hub_of(folder / "away", info, folder / "server") as hub:
        use_hub(monkeypatch, hub)
        hub.held_at = LIGHT_BYTES // 2
        yield hub, cache


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    """Set what HF_ENDPOINT sets when the hub's library is imported, for this process and those it starts."""
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


def checksum(path: Path) -> str:
    """Return the name of a file in the hub: SHA-256 for weights, and what git calls others."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def answer(
    handler: BaseHTTPRequestHandler, data: bytes, kind: str = "application/json", length: object = None
) -> None:
    """Answer with these bytes, and with another length in the header if it is given."""
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data) if length is None else length))
    handler.end_headers()
    handler.wfile.write(data)


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        self.server.tokens.add(self.headers.get("Authorization", ""))
        path = self.path.partition("?")[0]
        listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[0-9a-f]{40}(?:/(.+))?", path)
        if listed:
            self._list(listed[1], listed[2] or "")
            return
        wanted = re.fullmatch(r"/([^/]+/[^/]+)/(?:resolve/)?[0-9a-f]{40}/(.+)", path)
        file = self.server.folder / wanted[1] / wanted[2] if wanted else None
        if file is None or not file.is_file():
            self.send_error(404)
            return
        self._file(file)

    def _list(self, repository: str, subfolder: str) -> None:
        if "tree" in self.server.liars:
            self.server.liars["tree"](self)
            return
        root = self.server.folder / repository
        entries = [self._entry(root, file) for file in sorted((root / subfolder).iterdir()) if file.is_file()]
        if "tree" in self.server.pages:
            answer(self, PAGE.encode(), "text/html")
            return
        answer(self, json.dumps(entries).encode())

    def _entry(self, root: Path, file: Path) -> dict[str, object]:
        size, oid = self.server.sizes.get(file.name, file.stat().st_size), checksum(file)
        entry: dict[str, object] = {
            "type": "file", "path": str(file.relative_to(root)), "size": size, "oid": oid[:40],
        }  # fmt: skip
        if len(oid) == 64:
            entry["lfs"] = {"oid": oid, "size": size, "pointerSize": 134}
        return entry

    def _file(self, file: Path) -> None:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = int(match[1]) if match else 0
        self.server.asked.append((str(file.relative_to(self.server.folder)), begin))
        if file.name in self.server.liars:
            self.server.liars[file.name](self)
            return
        if file.name in self.server.pages:
            answer(self, PAGE.encode(), "text/html")
            return
        data = file.read_bytes()
        if begin >= len(data) and begin:
            self.send_error(416)
            return
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        end = self.server.broken.pop(file.name, len(data))
        for place in range(begin, end, CHUNK):
            self.wfile.write(data[place : min(place + CHUNK, end)])
            self.wfile.flush()
            sent = place - begin + CHUNK
            if not self.server.gate.is_set() and sent >= self.server.held_at and end - place > CHUNK:
                self.server.held.set()
                self.server.gate.wait(60)
        if end < len(data):
            self.close_connection = True

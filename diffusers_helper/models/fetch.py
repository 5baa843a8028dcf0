"""The download of a model's components from a hub repository at one revision, into the hub's local cache.

A file has a temporary name until its size and checksum are right, and an interrupted download continues.
`snapshot_download` compares no checksums, accepts answers that are too long, and starts over.
"""

import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get  # pyright: ignore[reportUnknownVariableType]
from huggingface_hub.utils import (
    WeakFileLock,
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    disable_progress_bars,
    hf_raise_for_status,
)
from huggingface_hub.utils import logging as hub_logging

from diffusers_helper.errors import LongtakeError, first_line, short_repr
from diffusers_helper.files import has_checksum
from diffusers_helper.models.downloads import Absence, NotHere, absence_of, bytes_in
from diffusers_helper.models.registry import ComponentSource, ModelInfo
from diffusers_helper.weights.reading import is_complete, is_web_page, partial_of

_log = logging.getLogger(__name__)

# Configurations, vocabularies and weights; other files are left out, since they may be pickles.
_SUFFIXES = (".json", ".safetensors", ".txt")
_WORKERS = 4
# The hub's library writes pieces of 10 MB. Smaller ones show that a slow download moves, and an interruption
# loses less.
_PIECE_BYTES = 1024**2
# The time-outs for connecting, reading, writing and the pool, and the pause before another try
_LIST_SECONDS, _AGAIN_SECONDS = (3.0, 10.0, 10.0, 3.0), 5.0
_MAX_SIZE = 2**42
_HUB: str = "https://huggingface.co"
_CHECKSUM = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# The hub's own error derives from those of the library that makes its requests. A listing that is not JSON
# raises a ValueError, and a connection that breaks hundreds of times a RecursionError.
_FAILURES: Any = (*HfHubHTTPError.__bases__, OSError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository, as the hub lists it; `address` is "" for one of the hub.

    Its checksum is SHA-256 for a large file, and git's for another one.
    """

    path: str
    size: int
    checksum: str
    address: str = ""


def get_model(info: ModelInfo, report: Callable[[int, int], None]) -> None:
    """Download the missing files of a model, and the small decoder for its previews.

    Any thread calls `report` with the bytes of the whole model that are here and those in all. NotHere is
    raised if the disk has no room for them.
    """
    hub_logging.set_verbosity_error()  # otherwise the hub's library writes about each try
    disable_progress_bars()
    constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _PIECE_BYTES)
    if (absence := absence_of(info)) is not None:
        _get_components(info, absence, report)
    _get_small_decoder(info)


def _get_small_decoder(info: ModelInfo) -> None:
    """Download the decoder for previews. Without it, previews are plain colours, so a failure is no error."""
    path = info.small_decoder_file
    source = info.small_decoder
    decoder = info.family.small_decoder
    if path is None or source is None or path.is_file():
        return
    # Where a mirror of the hub is set, the machine may reach no other address.
    address = decoder.url if constants.ENDPOINT == _HUB else ""
    file = RemoteFile(decoder.path, decoder.size, decoder.checksum, address)
    try:
        _get_files(source, [file], lambda path, count: None)
    except _FAILURES as error:
        _log.warning("The previews will have colours alone: %s (%s)", decoder.path, first_line(error))


def _get_components(info: ModelInfo, absence: Absence, report: Callable[[int, int], None]) -> None:
    listed = {component: listed_files(info.components[component]) for component in absence.component_bytes}
    complete = sum(
        bytes_in(source.folder) for component, source in info.components.items() if component not in listed
    )
    bytes_here = dict[Path, int]()
    missing = dict[str, int]()
    for component, files in listed.items():
        paths = [info.components[component].root / file.path for file in files]
        local_bytes = {path: bytes_in(path if path.is_file() else partial_of(path)) for path in paths}
        missing[component] = sum(file.size for file in files) - sum(local_bytes.values())
        bytes_here |= local_bytes
    exact_absence = replace(absence, component_bytes=missing)
    if not exact_absence.has_room:
        raise NotHere(exact_absence)
    total_bytes = complete + sum(bytes_here.values()) + exact_absence.total_bytes

    def received(path: Path, num_bytes: int) -> None:
        bytes_here[path] = num_bytes
        report(complete + sum(bytes_here.values()), total_bytes)

    for component, files in listed.items():
        get_component(info.components[component], files, received)


def get_component(
    source: ComponentSource, files: list[RemoteFile], on_bytes: Callable[[Path, int], None]
) -> None:
    _log.info("downloading %s %s", source.location, source.subfolder)
    try:
        _get_files(source, files, on_bytes)
    except _FAILURES as error:
        raise _download_error(source, first_line(error)) from error
    if not is_complete(source.folder):
        raise _download_error(source, "files are missing")


def _download_error(source: ComponentSource, reason: str) -> LongtakeError:
    return LongtakeError(
        f"{source.location} is incomplete on this machine and cannot be downloaded ({reason}).",
        "Check the network connection and start again; what was downloaded is kept.",
        code="download",
    )


def listed_files(source: ComponentSource) -> list[RemoteFile]:
    path = "/".join(filter(None, (source.location, "tree", str(source.revision), source.subfolder)))
    address = f"{constants.ENDPOINT}/api/models/{path}"
    try:
        # This first request fails soon if there is no network, where `http_get` would try for long.
        answer = get_session().get(
            address, headers=build_hf_headers(), timeout=_LIST_SECONDS, follow_redirects=True
        )
        hf_raise_for_status(answer)
        files = [
            RemoteFile(entry["path"], entry["size"], (entry.get("lfs") or entry)["oid"])
            for entry in answer.json()
            if entry["type"] == "file" and entry["path"].endswith(_SUFFIXES)
        ]
        for file in files:
            if file.path.rpartition("/")[0] != source.subfolder or not _CHECKSUM.fullmatch(file.checksum):
                raise ValueError(f"the hub lists {short_repr(file.path)}, which does not belong there")
            if type(file.size) is not int or not 0 <= file.size <= _MAX_SIZE:  # True is no size
                raise ValueError(f"the hub lists {file.path} with a size of {short_repr(file.size)}")
    except (*_FAILURES, KeyError, TypeError, AttributeError) as error:  # a list of another form
        raise _download_error(source, first_line(error)) from error
    return files


class _GrowingFile(FileIO):
    def __init__(self, path: Path, file: RemoteFile, on_size: Callable[[int], None]) -> None:
        super().__init__(path, "ab")
        self._file_path = file.path
        self._expected_bytes = file.size
        self._on_size = on_size
        if self.tell() > file.size:
            self.truncate(0)

    def write(self, b: Any, /) -> int:
        if self.tell() == 0 and is_web_page(b):
            raise OSError(f"the server answered with a web page in place of {self._file_path}")
        if self.tell() + len(b) > self._expected_bytes:
            raise OSError(f"the server sends more than the {self._expected_bytes} bytes of the file")
        count = super().write(b)
        self._on_size(self.tell())
        return count


def _get_files(
    source: ComponentSource, files: list[RemoteFile], on_bytes: Callable[[Path, int], None]
) -> None:
    has_ended = threading.Event()
    repository = source.repository

    def get(file: RemoteFile, target: Path) -> None:
        def on_size(size: int) -> None:
            if has_ended.is_set():
                raise OSError("another file of the part failed")
            on_bytes(target, size)

        blob = repository / "blobs" / file.checksum
        if not blob.is_file():
            _receive(source, file, on_size, has_ended)
        _put_in_place(partial_of(target), blob, target)
        on_size(file.size)

    lock = repository.parent / ".locks" / f"{repository.name}.lock"  # where the hub's library has its own
    for folder in {lock.parent, repository / "blobs", *((source.root / file.path).parent for file in files)}:
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock), ThreadPoolExecutor(_WORKERS) as pool:
        missing = [(file, path) for file in files if not (path := source.root / file.path).is_file()]
        for _, path in missing:  # The component counts as incomplete until no partial file is left.
            partial_of(path).touch()
        try:
            for task in as_completed([pool.submit(get, *task_arguments) for task_arguments in missing]):
                task.result()
        finally:
            has_ended.set()
            pool.shutdown(cancel_futures=True)


def _receive(
    source: ComponentSource, file: RemoteFile, on_size: Callable[[int], None], has_ended: threading.Event
) -> None:
    """Download a file, or continue its download. If the checksum is wrong, start over once.

    After a failure it tries again, as long as each try has brought at least a byte.
    """
    partial = partial_of(source.root / file.path)
    address = file.address or hf_hub_url(source.location, file.path, revision=source.revision)
    headers = {} if file.address else build_hf_headers()  # which tell the hub who asks
    for _ in range(2):
        with _GrowingFile(partial, file, on_size) as stream:
            while (offset := stream.seek(0, os.SEEK_END)) < file.size:
                try:
                    http_get(address, stream, resume_size=offset, headers=headers, expected_size=file.size)  # type: ignore[arg-type]
                except _FAILURES:
                    if stream.tell() <= offset or has_ended.wait(_AGAIN_SECONDS):
                        raise
            os.fsync(stream.fileno())
        if has_checksum(partial, file.checksum):
            return
        os.truncate(partial, 0)
    raise OSError(f"the checksum of {file.path} differs from the one that the hub lists")


def _put_in_place(partial: Path, blob: Path, target: Path) -> None:
    """Put a complete file in its place as the last step, so that no component looks complete too early."""
    target.unlink(missing_ok=True)  # a link to a file that no longer exists
    try:
        target.symlink_to(os.path.relpath(blob, target.parent))
    except OSError:  # a file system without links
        (blob if blob.is_file() else partial).replace(target)
    else:
        if not blob.is_file():
            partial.replace(blob)
    partial.unlink(missing_ok=True)

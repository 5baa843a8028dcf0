"""The files of a model's parts: those of a local folder, or a copy of a hub repository at one revision.

The copy is in the hub's local cache, in the layout that other programs use, too. A file that is being
downloaded has a temporary name until its size and checksum are right. A download that was interrupted, even
by a kill, continues after the last byte that was written.

The hub's library sends the requests, with its tokens, retries and resumption. Its `snapshot_download` is not
used: it compares sizes but no checksums, ends no answer that is too long, and keeps what is partly here apart
from the folder of the part, which then looks complete.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, cast

from huggingface_hub import constants, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get  # pyright: ignore[reportUnknownVariableType]
from huggingface_hub.utils import (
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    hf_raise_for_status,
)
from huggingface_hub.utils import logging as hub_logging

from diffusers_helper.cancel import CancelToken
from diffusers_helper.errors import LongtakeError, first_line, short_repr
from diffusers_helper.files import has_checksum
from diffusers_helper.machine.file_locks import take_lock
from diffusers_helper.models.downloads import Absence, NotHere, absence_of, bytes_in
from diffusers_helper.models.registry import ModelInfo, PartSource
from diffusers_helper.strangers.limited_json import parse_json
from diffusers_helper.weights.reading import has_all_files, is_complete, is_page, partial_of

_log = logging.getLogger(__name__)

# Configurations, vocabularies and weights; other files are left out, since they may be pickles.
_WANTED = ("*.json", "*.safetensors", "*.txt")
_WORKERS = 4
_MOST_LISTED, _MOST_SIZE = 4 * 2**20, 2**42
_MOST_RESTARTS = 5
# The hub's library writes pieces of 10 MB. Smaller ones show a slow download as moving, and cost less when it
# is broken off.
_PIECE_BYTES = 1024**2
# To connect, and at most without a byte read, written, or a connection.
_LIST_SECONDS = (3.0, 10.0, 10.0, 3.0)
_LOCK_SECONDS = 0.2
_HUB: str = "https://huggingface.co"
_CHECKSUM = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# The hub's own error derives from those of the library that makes its requests. A listing that is not JSON
# raises a ValueError, and a connection that breaks hundreds of times a RecursionError.
_FAILURES: Any = (*HfHubHTTPError.__bases__, OSError, ValueError, RecursionError)


class _WrongFile(OSError):
    """The error for a file from the hub that does not match the hub's list."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository, as the hub lists it.

    Attributes:
        checksum: The SHA-256 checksum of a large file, or the git checksum of another one.
        address: Where it is; "" for one of the hub.
    """

    path: str
    size: int
    checksum: str
    address: str = ""


def get_model(info: ModelInfo, cancel: CancelToken, report: Callable[[int, int], None]) -> None:
    """Download what is missing of a model, and the small decoder for its previews.

    Args:
        report: A function that any thread calls with the bytes of the whole model that are here and
            those in all.

    Raises:
        NotHere: If the disk has no room for the sizes that the hub lists.
        GenerationCancelled: If the download was cancelled.
        LongtakeError: If the files cannot be downloaded.
    """
    hub_logging.set_verbosity_error()  # otherwise the hub's library writes about each try
    constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _PIECE_BYTES)
    if (absence := absence_of(info)) is not None:
        _get_parts(info, absence, cancel, report)
    _get_small_decoder(info, cancel)


def _get_small_decoder(info: ModelInfo, cancel: CancelToken) -> None:
    """Download the decoder for previews. Without it they have colours alone, so a failure is no error."""
    place, source, decoder = info.small_decoder_file, info.small_decoder, info.family.small_decoder
    if place is None or source is None or place.is_file():
        return
    # Where a mirror of the hub is set, the machine may reach no other address.
    address = decoder.address if constants.ENDPOINT == _HUB else ""
    file = RemoteFile(decoder.path, decoder.size, decoder.checksum, address)
    try:
        _Download(source, cancel, lambda count: None).fetch([file])
    except _FAILURES as error:
        _log.warning("The previews will have colours alone: %s (%s)", decoder.path, first_line(error))


def _get_parts(
    info: ModelInfo, absence: Absence, cancel: CancelToken, report: Callable[[int, int], None]
) -> None:
    listed = {part: listed_files(info.parts[part]) for part in absence.part_bytes}
    sizes = {part: sum(file.size for file in files) for part, files in listed.items()}
    exact = replace(absence, part_bytes=sizes)
    if not exact.has_room:
        raise NotHere(exact)
    complete = sum(bytes_in(info.parts[part].folder) for part in info.parts if part not in sizes)
    here = {part: min(absence.here_bytes.get(part, 0), size) for part, size in sizes.items()}
    total = complete + sum(sizes.values())
    for part, files in listed.items():

        def received(count: int, part: str = part) -> None:
            here[part] = count
            report(complete + sum(here.values()), total)

        get_part(info.parts[part], files, cancel, received)
        received(sizes[part])


def get_part(
    source: PartSource, files: list[RemoteFile], cancel: CancelToken, on_bytes: Callable[[int], None]
) -> None:
    """Download the files of a part, as the hub lists them, that are not here.

    Args:
        on_bytes: A function that is called, from any thread, with the number of bytes that are here.

    Raises:
        GenerationCancelled: If the download was cancelled.
        LongtakeError: If the files cannot be downloaded.
    """
    _log.info("downloading %s %s", source.location, source.subfolder)
    try:
        _Download(source, cancel, on_bytes).fetch(files)
    except _FAILURES as error:
        if not is_complete(source.folder):  # no other program got them, either
            raise _not_got(source, first_line(error)) from error
    # All listed files are here. A partial one belongs to another program, which is about to find that out.
    if not has_all_files(source.folder):
        raise _not_got(source, "files are missing")


def _not_got(source: PartSource, reason: str) -> LongtakeError:
    return LongtakeError(
        f"{source.location} is incomplete on this machine and cannot be downloaded ({reason}).",
        "Check the network connection and start again; what was downloaded is kept.",
        code="download",
    )


def listed_files(source: PartSource) -> list[RemoteFile]:
    """Return the files of a part as the hub lists them.

    Raises:
        LongtakeError: If the hub does not answer, or lists what does not belong there.
    """
    try:
        entries = _listing(source)
        if not isinstance(entries, list):
            raise _WrongFile("the hub's list of files is none")
        return [file for entry in cast(list[Any], entries) if (file := _listed_file(source, entry))]
    except _FAILURES as error:
        raise _not_got(source, first_line(error)) from error


def _listing(source: PartSource) -> Any:
    place = "/".join(filter(None, (source.location, "tree", str(source.revision), source.subfolder)))
    address, answer = f"{constants.ENDPOINT}/api/models/{place}", bytearray()
    # This is the first request, so it tells soon if there is no network; `http_get` would try for long.
    with get_session().stream(
        "GET", address, headers=build_hf_headers(), timeout=_LIST_SECONDS, follow_redirects=True
    ) as response:
        hf_raise_for_status(response)
        for piece in response.iter_bytes():
            answer += piece
            if len(answer) > _MOST_LISTED:
                raise _WrongFile(f"the server sends more than the {_MOST_LISTED} bytes of the list of files")
    return parse_json(bytes(answer))


def _listed_file(source: PartSource, entry: Any) -> RemoteFile | None:
    """Return a file of the hub's list; None for a folder, and for a file that no part needs.

    Raises:
        _WrongFile: If the entry is damaged, or does not belong there.
    """
    try:
        path, is_file = str(entry["path"]), entry["type"] == "file"
        folder, _, name = path.rpartition("/")
        if not is_file or not any(fnmatch(name, pattern) for pattern in _WANTED):
            return None
        size, checksum = entry["size"], (entry.get("lfs") or entry)["oid"]
    except (KeyError, TypeError, AttributeError) as error:
        raise _WrongFile(f"the hub lists {short_repr(entry)}, which is no file") from error
    if type(size) is not int or not 0 <= size <= _MOST_SIZE:
        raise _WrongFile(f"the hub lists {short_repr(path)} with a size of {short_repr(size)}")
    if folder != source.subfolder or not _CHECKSUM.fullmatch(str(checksum)):
        raise _WrongFile(f"the hub lists {short_repr(path)}, which does not belong there")
    return RemoteFile(path, size, checksum)


def _bar(stream: IO[bytes], size: int, what: str, take: Callable[[int], None]) -> type:
    """Return a stand-in for the progress bar of the hub's library, which ends a download that has no end.

    Args:
        size: The most bytes that it may have. A piece of the download more is written at most.
    """
    restarts = 0

    class Bar(AbstractContextManager[Any]):
        """A progress bar that shows nothing."""

        def __init__(self, **_: Any) -> None:
            """Accept the arguments of a progress bar."""

        def __exit__(self, *_: object) -> None:
            """Do nothing."""

        def update(self, n: float | None = 1) -> None:
            nonlocal restarts
            restarts += (n or 0) < 0  # the connection broke off, and the server began anew
            if stream.tell() > size:
                raise _WrongFile(f"the server sends more than the {size} bytes of {what}")
            if restarts > _MOST_RESTARTS:
                raise _WrongFile(f"the server breaks off {what} again and again")
            take(int(n or 0))

    return Bar


class _Download:
    """The download of a part's files by several threads, with the count of its bytes."""

    def __init__(self, source: PartSource, cancel: CancelToken, on_bytes: Callable[[int], None]) -> None:
        self._source, self._cancel, self._on_bytes = source, cancel, on_bytes
        self._lock, self._count, self._is_over = threading.Lock(), 0, threading.Event()

    def fetch(self, files: list[RemoteFile]) -> None:
        """Download the missing ones of these files, several at a time."""
        root = self._source.root
        missing = [file for file in files if not (root / file.path).is_file()]
        for file in missing:  # From now on, the part counts as incomplete until all its files are complete.
            partial = partial_of(root / file.path)
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.touch()
        self._add(sum(file.size for file in files) - sum(file.size for file in missing))
        with ThreadPoolExecutor(_WORKERS) as pool:
            try:
                for task in as_completed([pool.submit(self._fetch, file) for file in missing]):
                    task.result()
            finally:
                self._is_over.set()
                pool.shutdown(cancel_futures=True)

    def _check(self) -> None:
        """Raise the error that has to end the download, if there is one."""
        self._cancel.check()
        if self._is_over.is_set():
            raise _WrongFile("another file of the part failed")

    def _add(self, count: int) -> None:
        with self._lock:
            self._count += count
            self._on_bytes(self._count)

    def _take(self, count: int) -> None:
        self._check()
        self._add(count)

    def _fetch(self, file: RemoteFile) -> None:
        target, blob = self._source.root / file.path, self._source.repository / "blobs" / file.checksum
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = partial_of(target)
        with self._locked(partial) as stream:
            if target.is_file() or blob.is_file():
                self._add(file.size)
            else:
                self._receive(file, partial, stream)
            if not target.is_file():
                _place(partial, blob, target)
            partial.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, partial: Path) -> Generator[IO[bytes]]:
        """Open a partial file under a lock, which the kernel releases however the program ends."""
        while True:
            self._check()
            with partial.open("ab") as stream:
                try:
                    take_lock(stream, waits=False)
                except BlockingIOError:
                    time.sleep(_LOCK_SECONDS)
                    continue
                # The program that had it may have finished or deleted the file.
                if partial.exists() and os.fstat(stream.fileno()).st_ino == partial.stat().st_ino:
                    yield stream
                    return

    def _receive(self, file: RemoteFile, partial: Path, stream: IO[bytes]) -> None:
        """Download a file, continuing an interrupted download; if the result is wrong, start over once.

        Raises:
            _WrongFile: If the hub gives another file than the one it lists.
        """
        source, here = self._source, partial.stat().st_size
        for begin in dict.fromkeys((here if here <= file.size else 0, 0)):
            stream.truncate(begin)
            stream.seek(begin)
            self._add(begin)
            try:
                http_get(
                    file.address or hf_hub_url(source.location, file.path, revision=source.revision),
                    stream,  # type: ignore[arg-type]
                    resume_size=begin,
                    headers={} if file.address else build_hf_headers(),  # which tell the hub who asks
                    expected_size=file.size,
                    tqdm_class=_bar(stream, file.size, short_repr(file.path), self._take),  # type: ignore[arg-type]
                )
            except HfHubHTTPError as error:
                if begin == 0 or error.response.status_code != 416:  # the server has no bytes from there on
                    raise
            except OSError:
                stream.flush()
                _check_answer(file, partial)
                raise
            stream.flush()
            os.fsync(stream.fileno())
            if has_checksum(partial, file.checksum):
                return
            self._add(-partial.stat().st_size)
        partial.unlink()
        raise _WrongFile(f"the checksum of {file.path} differs from the one that the hub lists")


def _place(partial: Path, blob: Path, target: Path) -> None:
    """Put a complete file in its place, which is the last step, so a part never looks complete too early."""
    target.unlink(missing_ok=True)  # a link to a file that no longer exists
    try:
        target.symlink_to(os.path.relpath(blob, target.parent))
    except OSError:  # a file system without links
        (blob if blob.is_file() else partial).replace(target)
    else:
        if not blob.is_file():
            partial.replace(blob)


def _check_answer(file: RemoteFile, partial: Path) -> None:
    """Refuse, and delete, a download that is a web page in place of the file."""
    with partial.open("rb") as stream:
        start = stream.read(2048)
    if is_page(start):
        partial.unlink()
        raise _WrongFile(f"the server answered with a web page in place of {file.path}")
    if partial.stat().st_size > file.size:
        partial.unlink()
        raise _WrongFile(f"{file.path} is larger than the hub says")

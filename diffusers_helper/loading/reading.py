"""The reading of files with weights into the page cache, before they are used, and the dropping of pages."""

import logging
import mmap
import os
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

from diffusers_helper.cancel import CancelToken
from diffusers_helper.loading.tensors import MAPS
from diffusers_helper.machine.sysfs import host_memory, resident_bytes
from diffusers_helper.units import gb_text

_log = logging.getLogger(__name__)
# Fast disks need several requests at a time, and slow ones need them close together.
_READERS, _PIECE_BYTES = 4, 2 * 1024**2
# The share of the free memory that the files may take.
_MAX_SHARE = 0.9
_REPORT_SECONDS = 1.0


def read_ahead(
    files: Sequence[Path],
    cancel: CancelToken,
    on_bytes: Callable[[int, int], None] = lambda read_bytes, total_bytes: None,
) -> None:
    total = _total_bytes(files)
    if not can_keep(files):
        _log.info(
            "%s GB of weights stay on the disk until they are used: %s GB of main memory are free",
            gb_text(total), gb_text(host_memory().available),
        )  # fmt: skip
        return
    start_time = report_time = time.monotonic()
    done = 0
    with closing(pieces_of(files)) as pieces:
        for piece_bytes in pieces:
            done += piece_bytes
            cancel.check()
            if (now := time.monotonic()) - report_time >= _REPORT_SECONDS:
                report_time = now
                on_bytes(done, total)
    seconds = time.monotonic() - start_time
    _log.info(
        "read %s GB of weights in %.1f s (%.2f GB/s); %s GB of this process's memory are its own",
        gb_text(done), seconds, done / 1e9 / max(seconds, 1e-9), gb_text(anonymous_bytes()),
    )  # fmt: skip


def can_keep(files: Sequence[Path]) -> bool:
    return _total_bytes(files) <= _MAX_SHARE * host_memory().available


def _total_bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def pieces_of(files: Sequence[Path]) -> Generator[int]:
    """Read files in several threads, and yield the number of bytes of each piece that is in memory.

    To ask for pages with `posix_fadvise` is not enough: the kernel then reads no more at a time than the
    disk's `read_ahead_kb`. If the iterator is closed, the threads end with the pieces that they are reading.
    """
    for file in files:
        with (
            file.open("rb") as source,
            Path(os.devnull).open("wb") as sink,
            ThreadPoolExecutor(_READERS, "reader") as pool,
        ):
            read = partial(_read_piece, source.fileno(), sink.fileno())
            yield from pool.map(read, range(0, file.stat().st_size, _PIECE_BYTES))


def _read_piece(source: int, sink: int, start: int) -> int:
    """Read a piece with `sendfile`, which copies nothing and takes a third of the time of `read`."""
    done = 0
    while done < _PIECE_BYTES and (sent := os.sendfile(sink, source, start + done, _PIECE_BYTES - done)):
        done += sent
    return done


def anonymous_bytes() -> int:
    return resident_bytes(os.getpid(), kind="RssAnon")


def drop_pages(file: Path) -> None:
    """Drop a file's pages from main memory, also those of its tensors, which the next use reads again."""
    for pages in MAPS.get(file, ()):
        pages.madvise(mmap.MADV_DONTNEED)
    with file.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

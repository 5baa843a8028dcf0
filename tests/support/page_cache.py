"""What the kernel's page cache has of a file."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from diffusers_helper.loading.reading import drop_pages


def cached_bytes(file: Path) -> int:
    """Return how many bytes of a file are in the page cache, in whole pages, as `mincore` tells."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        states = (ctypes.c_ubyte * -(-len(pages) // mmap.PAGESIZE))()
        address = np.frombuffer(pages, np.uint8).ctypes.data
        library = ctypes.CDLL(None, use_errno=True)
        if library.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(pages)), states):
            raise OSError(ctypes.get_errno(), "mincore")
        return mmap.PAGESIZE * sum(state & 1 for state in states)


def write_uncached(file: Path, content: bytes) -> None:
    """Write a file whose pages are not in the page cache; skip the test if the file system has none."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    drop_pages(file)
    if cached_bytes(file) > len(content) // 50:
        pytest.skip("the file system of the temporary folder drops no pages, as tmpfs does not")

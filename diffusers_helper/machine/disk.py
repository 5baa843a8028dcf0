"""The speed at which weights are read from the disk, measured once within a time limit and stored."""

from __future__ import annotations

import mmap
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from diffusers_helper.machine.local import Facts

_SAMPLE_BYTES, _BLOCK_BYTES = 256 * 1024**2, 8 * 1024**2
_SECONDS = 2.0


def disk_speed(file: Path, seconds: float = _SECONDS) -> float | None:
    """Measure the bytes per second of reads that bypass the page cache.

    Returns:
        The speed, or None if the system or the file does not allow such reads.
    """
    flags = os.O_RDONLY | getattr(os, "O_DIRECT", 0)
    if flags == os.O_RDONLY:
        return None
    try:
        descriptor = os.open(file, flags)
    except OSError:
        return None
    # Direct reads need an aligned buffer, which a map of memory is.
    with mmap.mmap(-1, _BLOCK_BYTES) as buffer:
        begin, count = time.perf_counter(), 0
        try:
            while count < _SAMPLE_BYTES and (got := os.readv(descriptor, [buffer])):
                count += got
                if time.perf_counter() - begin > seconds:
                    break
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return count / max(time.perf_counter() - begin, 1e-9) if count else None


@dataclass(frozen=True)
class DiskSpeeds:
    """The speeds of the disks, by the folder of the weights. Any thread may use it."""

    facts: Facts = field(default_factory=Facts)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _threads: dict[Path, threading.Thread] = field(
        default_factory=dict[Path, threading.Thread], init=False, repr=False
    )

    def known(self, file: Path) -> float | None:
        """Return the bytes per second of the disk with this file, or None if it was not measured yet."""
        speed = self.facts.read(str(file.parent)).get("bytes_per_second")
        return float(speed) if isinstance(speed, int | float) and speed > 0 else None

    def measure(self, file: Path) -> float | None:
        """Return the speed of the disk with this file, and measure it first if it is not known."""
        known = self.known(file)
        if known is not None:
            return known
        speed = disk_speed(file)
        if speed is not None:
            self.facts.write(str(file.parent), {"bytes_per_second": round(speed)})
        return speed

    def ask(self, file: Path) -> float | None:
        """Return the speed if it is known. Otherwise return None, and start to measure it in a thread."""
        known = self.known(file)
        with self._lock:
            if known is None and file.parent not in self._threads:
                thread = threading.Thread(target=self.measure, args=(file,), name="disk", daemon=True)
                self._threads[file.parent] = thread
                thread.start()
        return known

    def wait(self) -> None:
        """Wait until all measurements that `ask` has started are finished."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()

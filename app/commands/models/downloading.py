"""The download of a model by a command, and the progress of long work on the terminal or as lines of JSON."""

from __future__ import annotations

import json
import sys
import threading
import time

from app.jobs.stdio import complain, say
from app.starting import EXIT_CANCELLED
from diffusers_helper.cancel import CancelToken
from diffusers_helper.models.downloads import Speed
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.units import about, gb_text

_LIVE_SECONDS, _JSON_SECONDS = 0.2, 1.0
_WIDTH = 78  # characters, which cover those of an earlier line
_LINE_SECONDS = 10.0  # between two lines where there is no terminal


def download(info: ModelInfo, *, as_json: bool) -> None:
    """Download what is missing of a model, and show the progress.

    Args:
        as_json: Whether the progress goes to standard output as JSON.

    Raises:
        SystemExit: If Ctrl-C has ended it.
        NotHere: If the disk has no room for it.
        LongtakeError: If the files cannot be downloaded.
    """
    from diffusers_helper.models.fetch import get_model  # the hub's library takes a second to import

    progress = Progress(info.name, "downloading", as_json=as_json)
    try:
        get_model(info, CancelToken(), progress.show)
    except KeyboardInterrupt:
        progress.end()
        complain("Interrupted. The next download continues from here.")
        raise SystemExit(EXIT_CANCELLED) from None
    finally:
        progress.end()


class Progress:
    """The progress of long work, as a line that changes, as lines now and then, or as JSON."""

    def __init__(self, model: str, state: str, *, as_json: bool) -> None:
        """Begin without a word.

        Args:
            as_json: Whether the progress goes to standard output as JSON.
        """
        self._is_json, self._model, self._state = as_json, model, state
        self._is_live = sys.stderr.isatty() and not as_json
        self._seconds = _JSON_SECONDS if as_json else _LIVE_SECONDS if self._is_live else _LINE_SECONDS
        self._speed: Speed | None = None
        self._reported_at = 0.0
        self._lock = threading.Lock()

    def show(self, done: int, total: int) -> None:
        """Tell the bytes that are here and those in all; any thread may call this."""
        with self._lock:
            now = time.monotonic()
            self._speed = self._speed or Speed(done, now)
            if now - self._reported_at >= self._seconds or done == total:
                self._reported_at = now
                self._show(done, total, self._speed.at(done, now))

    def _show(self, done: int, total: int, speed: float) -> None:
        left = (total - done) / speed if speed else None
        if self._is_json:
            facts = {"model": self._model, "state": self._state, "done_bytes": done, "total_bytes": total}
            say(json.dumps({**facts, "bytes_per_second": round(speed), "seconds_left": left}))
            return
        pace = f", {speed / 1e6:.1f} MB/s, {about(left)} left" if left else ""
        line = f"{self._model}: {gb_text(done)} of {gb_text(total)} GB{pace}"
        if not self._is_live:
            complain(line)
            return
        sys.stderr.write(f"\r{line:<{_WIDTH}}")
        sys.stderr.flush()

    def end(self) -> None:
        if self._is_live:
            self._is_live = False
            sys.stderr.write("\n")

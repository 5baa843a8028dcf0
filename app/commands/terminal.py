"""The displays of a job and of a download on the command line: text for users, and JSON for programs."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import IO, Any, TextIO

from tqdm import tqdm

from app.commands.arguments import error_line
from app.jobs.job import Job, size_of
from app.jobs.pace import PaceBook
from app.jobs.stdio import complain, in_language, say, write_whole
from app.starting import EXIT_CANCELLED
from app.ui.live import words
from app.ui.live.progress import LiveJob
from diffusers_helper import events
from diffusers_helper.machine.terminal import one_line
from diffusers_helper.models.downloads import Speed
from diffusers_helper.models.registry import ModelInfo
from diffusers_helper.units import about, count_text, duration, gb_text


class JsonLines:
    """A display for programs: one JSON event per line, and a sentence about each failure on stderr."""

    def __init__(self, stdout: IO[bytes], stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr

    def begin(self, job: Job, paces: PaceBook, earlier_events: Sequence[events.Event]) -> None:
        """Write nothing, because the events contain everything."""

    def tick(self) -> None:
        """Write nothing, because time passes for programs too."""

    def report(self, text: str) -> None:
        complain(text)

    def show(self, event: events.Event) -> None:
        _write_line(self._stdout, json.dumps(events.to_dict(event), allow_nan=False))
        if isinstance(event, events.Failed):
            complain(error_line(event))


class ProgressBar:
    """A display for users: a line that moves on a terminal, otherwise one line per section.

    Without a terminal there is also a line every ten seconds until the first section can be watched, which
    may take many minutes.
    """

    def __init__(self, stdout: IO[bytes], stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr
        self._bar: tqdm[Any] | None = None
        self._last_event_at = self._last_line_at = time.monotonic()

    def begin(
        self, job: Job, paces: PaceBook | None = None, earlier_events: Sequence[events.Event] = ()
    ) -> None:
        self._live = LiveJob(job, paces and paces.pace(job.request.model), *size_of(job))
        for event in earlier_events:
            self._live.apply(event)
        self._say(f"Job {job.id} in {job.folder}: starting")

    def report(self, text: str) -> None:
        self._say(text)

    def show(self, event: events.Event) -> None:
        live = self._live
        self._last_event_at = time.monotonic()
        live.apply(event)
        match event:
            case events.JobStarted():
                length = f"{count_text(event.frames, 'frame')}, {event.frames / live.plan.fps:.1f} s"
                self._say(
                    f"{event.width}x{event.height} pixels, {length}, {count_text(event.sections, 'section')}"
                )
            case events.SectionFinished():
                frames = count_text(event.frames, "frame")
                self._say(f"Section {event.section} of {event.sections}: {frames} in {event.video}")
            case events.Warned():
                self._say(event.message)
            case events.Finished() | events.Cancelled() | events.Failed():
                self._end(event)
                return
            case _:
                self.tick()

    def tick(self) -> None:
        live, now = self._live, time.monotonic()
        elapsed = live.last_sign + now - self._last_event_at
        if self._stderr.isatty():
            if self._bar is None:
                bar_format = "{desc}{percentage:4.0f} %|{bar}|"
                options: dict[str, Any] = {"total": 100, "leave": False, "bar_format": bar_format}
                self._bar = tqdm(file=self._stderr, dynamic_ncols=True, **options)
            self._bar.n = live.percent
            self._bar.set_description_str(in_language(words.line(live, elapsed)))
        elif not live.sections_made and now - self._last_line_at >= _LINE_SECONDS:
            self._last_line_at = now
            self._say(words.line(live, elapsed))

    def _end(self, event: events.Finished | events.Cancelled | events.Failed) -> None:
        if self._bar is not None:
            self._bar.close()
        if isinstance(event, events.Finished):
            skipped = event.steps_skipped
            steps = f" {count_text(skipped, 'step')} reused what earlier ones computed." if skipped else ""
            self._say(f"Finished: {count_text(event.frames, 'frame')} in {duration(event.seconds)}.{steps}")
            if event.advice:
                self._say(event.advice)
        else:
            self._say(error_line(event) if isinstance(event, events.Failed) else "Cancelled.")
            if event.video is not None:
                self._say(f"The video so far has {count_text(event.frames, 'frame')}.")
        if event.video is not None:
            # A program gets the path as it is.
            _write_line(self._stdout, one_line(event.video) if self._stdout.isatty() else event.video)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # as on a full disk; the video is made all the same
            tqdm.write(one_line(in_language(text)), file=self._stderr)
            self._stderr.flush()


def _write_line(stdout: IO[bytes], text: str) -> None:
    write_whole(stdout, text.encode(errors="surrogateescape") + b"\n")


_LIVE_SECONDS, _JSON_SECONDS = 0.2, 1.0
_WIDTH = 78  # characters, which cover those of an earlier line
_LINE_SECONDS = 10.0  # between two lines where there is no terminal


def download(info: ModelInfo, *, as_json: bool) -> None:
    from diffusers_helper.models.fetch import get_model  # the hub's library takes a second to import

    kept_sentence = "The next download continues from here."
    with progress(info.name, "downloading", kept_sentence, as_json=as_json) as show:
        get_model(info, show)


@contextlib.contextmanager
def progress(
    model: str, state: str, kept_sentence: str, *, as_json: bool
) -> Generator[Callable[[int, int], None]]:
    """Show the progress of long work, as a line that changes, as lines now and then, or as JSON.

    Args:
        kept_sentence: What is kept after Ctrl-C, which ends the program with `SystemExit`.

    Yields:
        A function that takes the bytes so far and the bytes in all; any thread may call it.
    """
    is_live = sys.stderr.isatty() and not as_json
    seconds = _LIVE_SECONDS if is_live else _LINE_SECONDS
    if as_json:
        seconds = _JSON_SECONDS
    lock = threading.Lock()
    speed = None
    reported_at = 0.0

    def show(done: int, total: int) -> None:
        nonlocal speed, reported_at
        with lock:
            now = time.monotonic()
            speed = speed or Speed(done, now)
            if now - reported_at < seconds and done != total:
                return
            reported_at = now
            pace = speed.at(done, now)
            seconds_left = (total - done) / pace if pace else None
            if as_json:
                fields = {"model": model, "state": state, "done_bytes": done, "total_bytes": total}
                say(json.dumps({**fields, "bytes_per_second": round(pace), "seconds_left": seconds_left}))
                return
            details = f", {pace / 1e6:.1f} MB/s, {about(seconds_left)} left" if seconds_left else ""
            line = f"{model}: {gb_text(done)} of {gb_text(total)} GB{details}"
            if is_live:
                sys.stderr.write(f"\r{line:<{_WIDTH}}")
                sys.stderr.flush()
            else:
                complain(line)

    try:
        try:
            yield show
        finally:
            if is_live:
                sys.stderr.write("\n")
    except KeyboardInterrupt:
        complain(f"Interrupted. {kept_sentence}")
        raise SystemExit(EXIT_CANCELLED) from None

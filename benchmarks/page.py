"""The costs of the page, and the delay until it shows a new section. Chromium is needed.

    python benchmarks/page.py [--jobs 0 20 100] [--json]
    python benchmarks/page.py --first-frame [--seconds 7] [--repeat 2] [--json]

The first command measures the load time of the page, and the memory of the page and of the web process, after
0, 20 and 100 jobs. An engine without a model makes the jobs, so that only the page is measured. One tab stays
open all the time; for each row further tabs are opened, timed and closed again.

The second command starts the product with the demo model, and one tab that watches whole jobs in both modes.
For each section it measures the time from its event in the job's log until the tab receives the event, and
until a decoded frame of the new video is on the screen.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from playwright.sync_api import sync_playwright  # noqa: E402

from app.jobs.service import JobService  # noqa: E402
from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.events import SectionFinished  # noqa: E402
from diffusers_helper.families.packing import MODES, Mode  # noqa: E402
from diffusers_helper.request import SETTINGS  # noqa: E402
from tests.support.pages import CHROMIUM, FLAGS, PageProgram, free_port, write_photo  # noqa: E402

LOADS = 5
EVENTS = 20  # more events than a job of one section has
TIMEOUT = 120_000  # in milliseconds; only a fault takes that long
# Returns the milliseconds from the navigation until the form is usable and the state of the jobs is shown.
INTERACTIVE = """() => new Promise(done => {
    const ready = () => document.querySelector('#set-prompt textarea, .lt-request textarea')
        && document.querySelector('.lt-status') && document.querySelector('input[type=file]');
    const look = () => ready() ? done(performance.now()) : requestAnimationFrame(look);
    look();
})"""

# Records, in milliseconds since the epoch, when the tab learns of a version of the video (identified by job
# and number of frames), and when the first of its frames is on the screen. A video that is paused, or that
# stops at its last frame, has no further frame to wait for; then the second picture that the browser draws
# after that counts.
NOTE_FRAMES = """() => {
    const stage = document.querySelector('.lt-stage'), card = document.querySelector('.lt-status');
    window.told = {};
    window.shown = {};
    new MutationObserver(() => { window.told[`${card.dataset.job} ${card.dataset.frames}`] ??= Date.now(); })
        .observe(card, {attributeFilter: ['data-job', 'data-frames']});
    let top = null;
    new MutationObserver(() => {
        const now = stage.querySelector('video.lt-top');
        if (!now || now === top) return;
        top = now;
        const [, job, frames] = stage.dataset.url.match(/^jobs\\/([^/]+)\\/.*[?]v=(\\d+)$/);
        const note = () => {
            if (now === top && now.readyState >= 2) window.shown[`${job} ${frames}`] ??= Date.now();
        };
        const noteWhenDrawn = () => requestAnimationFrame(() => requestAnimationFrame(note));
        if (now.paused) return noteWhenDrawn();
        now.requestVideoFrameCallback(note);
        now.addEventListener('pause', noteWhenDrawn, {once: true});
    }).observe(stage, {subtree: true, attributeFilter: ['class']});
}"""


@dataclass(frozen=True)
class Delay:
    """The milliseconds from a section's event until the tab receives it, and until it shows a frame."""

    mode: Mode
    section: int
    reported_ms: float
    shown_ms: float


@dataclass(frozen=True)
class Row:
    """The figures after a number of jobs. `load_ms` is the median; sizes are in bytes."""

    jobs: int
    load_ms: float
    slowest_load_ms: float
    tab_heap_bytes: int
    tab_nodes: int
    tab_listeners: int
    server_bytes: int
    server_threads: int
    server_files: int


class Server:
    """The page with the staged engine, in a separate process."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.staged_program", str(folder), str(port)],
            cwd=ROOT, env={**os.environ, "GRADIO_TEMP_DIR": str(folder / "cache")}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._answer()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def report(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()

    def figures(self) -> dict[str, int]:
        self.report(-1)
        return json.loads(self._answer())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def make_job(page: Any, server: Server, number: int) -> None:
    """Make one whole job with the page's own button."""
    before = page.locator(".lt-status").get_attribute("data-job")
    page.get_by_label("Prompt", exact=True).fill(f"the red ball moves right, number {number}")
    page.get_by_role("button", name="Start Generation").click()
    server.report(EVENTS)
    page.wait_for_function(
        """before => {
            const {job, state} = document.querySelector('.lt-status').dataset;
            return job !== before && state === 'finished';
        }""",
        arg=before or "",
    )


def measure(browser: Any, page: Any, server: Server, jobs: int) -> Row:
    """Measure the page and the web process after this number of jobs."""
    times = []
    for _ in range(LOADS):
        tab = browser.new_page(bypass_csp=True)
        tab.goto(server.url, wait_until="commit")
        times.append(tab.evaluate(INTERACTIVE))
        tab.close()
    inside = page.context.new_cdp_session(page)
    inside.send("HeapProfiler.collectGarbage")
    inside.send("Performance.enable")
    tab_figures = {one["name"]: one["value"] for one in inside.send("Performance.getMetrics")["metrics"]}
    inside.detach()
    process = server.figures()
    return Row(
        jobs=jobs,
        load_ms=round(statistics.median(times), 1),
        slowest_load_ms=round(max(times), 1),
        tab_heap_bytes=int(tab_figures["JSHeapUsedSize"]),
        tab_nodes=int(tab_figures["Nodes"]),
        tab_listeners=int(tab_figures["JSEventListeners"]),
        server_bytes=process["rss_bytes"],
        server_threads=process["threads"],
        server_files=process["files"],
    )


def run(counts: list[int]) -> Iterator[Row]:
    """Yield a row for each number of jobs."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = browser.new_page(bypass_csp=True)
            page.set_default_timeout(TIMEOUT)
            page.goto(server.url)
            page.wait_for_selector(".lt-status", state="attached")
            page.set_input_files("input[type=file]", str(write_photo(Path(folder) / "photo.png")))
            page.wait_for_selector("#set-image img")
            seconds = page.get_by_label("number input for Total Video Length (Seconds)")
            seconds.fill("1")
            seconds.press("Tab")
            made = 0
            for count in sorted(counts):
                while made < count:
                    made += 1
                    make_job(page, server, made)
                yield measure(browser, page, server, made)
        finally:
            browser.close()
            server.end()


def watch_job(page: Any, service: JobService, mode: Mode) -> list[Delay]:
    """Start one job with the page's own button, in the mode chosen there, and watch it to its end."""
    before = page.locator(".lt-status").get_attribute("data-job") or ""
    page.get_by_role("radio", name=SETTINGS["mode"].choices[mode]).check(force=True)
    page.get_by_role("button", name="Start Generation").click()
    page.wait_for_function(
        """before => {
            const {job, state} = document.querySelector('.lt-status').dataset;
            return job !== before && ['finished', 'failed'].includes(state);
        }""",
        arg=before,
    )
    job = service.job(page.locator(".lt-status").get_attribute("data-job"))
    sections = [event for event in service.events(job.id) if isinstance(event, SectionFinished)]
    assert job.state == "finished", job.message
    page.wait_for_function("name => name in window.shown", arg=f"{job.id} {sections[-1].frames}")
    reported, shown = page.evaluate("[window.told, window.shown]")
    delays: list[Delay] = []
    for event in sections:
        # The worker sets an event's time just before it writes the event.
        written = 1000 * ((job.started or 0.0) + event.time)
        name = f"{job.id} {event.frames}"
        if name in shown:  # a version is never shown if the next one comes too soon
            delays.append(
                Delay(mode, event.section, round(reported[name] - written), round(shown[name] - written))
            )
    return delays


def first_frames(seconds: float, repeat: int, *arguments: str) -> Iterator[Delay]:
    """Run whole jobs in both modes, with more arguments of the program, and yield their sections' delays."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        program = PageProgram(Path(folder), *arguments)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = browser.new_page(bypass_csp=True)
            page.set_default_timeout(TIMEOUT)
            page.goto(program.wait_until_up())
            page.wait_for_selector(".lt-status", state="attached")
            page.evaluate(NOTE_FRAMES)
            page.set_input_files("input[type=file]", str(write_photo(Path(folder) / "photo.png")))
            page.wait_for_selector("#set-image img")
            page.get_by_label("Prompt", exact=True).fill("the red ball moves right")
            length = page.get_by_label("number input for Total Video Length (Seconds)")
            length.fill(f"{seconds:g}")
            length.press("Tab")
            service = JobService(program.outputs)
            for _ in range(repeat):
                for mode in MODES:
                    yield from watch_job(page, service, mode)
        finally:
            browser.close()
            program.end()


def summary(delays: list[Delay]) -> dict[str, dict[str, float]]:
    """Return, for each mode, the number of sections and statistics of their delays in milliseconds."""
    found: dict[str, dict[str, float]] = {}
    for mode in MODES:
        some = [delay for delay in delays if delay.mode == mode]
        reported, shown = ([getattr(one, name) for one in some] for name in ("reported_ms", "shown_ms"))
        found[mode] = {
            "sections": len(some),
            "reported_ms_median": statistics.median(reported),
            "shown_ms_min": min(shown),
            "shown_ms_median": statistics.median(shown),
            "shown_ms_max": max(shown),
        }
    return found


def line(mode: str, facts: dict[str, float]) -> str:
    """Return the delays of one mode as a line of text."""
    least, middle, most = (facts[f"shown_ms_{name}"] / 1000 for name in ("min", "median", "max"))
    return (
        f"first frame of a new section on screen, {mode}: {least:.2f} / {middle:.2f} / {most:.2f} s "
        f"(least, median, most of {facts['sections']}); the tab is told after "
        f"{facts['reported_ms_median'] / 1000:.2f} s"
    )


def table(rows: list[Row]) -> Iterator[str]:
    """Yield the rows as the lines of a table."""
    yield "jobs  load ms (slowest)  tab heap MB  nodes  listeners  server MB  threads  files"
    for row in rows:
        yield (
            f"{row.jobs:4}  {row.load_ms:7.0f} ({row.slowest_load_ms:6.0f})"
            f"  {row.tab_heap_bytes / 2**20:11.1f}  {row.tab_nodes:5}  {row.tab_listeners:9}"
            f"  {row.server_bytes / 2**20:9.1f}  {row.server_threads:7}  {row.server_files:5}"
        )


def main() -> int:
    """Print the figures of the page, or the delays of first frames."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[0, 20, 100])
    parser.add_argument(
        "--first-frame", action="store_true", help="measure the delay until a new section is on screen"
    )
    parser.add_argument("--seconds", type=float, default=7.0, help="length of each video (default: 7)")
    parser.add_argument("--repeat", type=int, default=2, help="number of videos per mode (default: 2)")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    about: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_before": os.getloadavg()[0],
        "gradio": version("gradio"),
        "python": platform.python_version(),
    }
    delays, figures = list[Delay](), list[Row]()
    with Rows(__file__, facts=lambda: about) as rows:
        if arguments.first_frame:
            for delay in first_frames(arguments.seconds, arguments.repeat):
                delays.append(delay)
                rows.add(asdict(delay))
        else:
            for figure in run(arguments.jobs):
                figures.append(figure)
                rows.add(asdict(figure))
    if rows.is_interrupted:
        return rows.exit_code()
    lines, result = list(table(figures)), dict[str, Any]({"rows": rows})
    if arguments.first_frame:
        found = summary(delays)
        lines, result = [line(mode, facts) for mode, facts in found.items()], {"first_frame": found, **result}
    if not arguments.json:
        sys.stdout.write("".join(f"{text}\n" for text in lines))
    sys.stdout.write(json.dumps({**about, **result, "load_after": os.getloadavg()[0]}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

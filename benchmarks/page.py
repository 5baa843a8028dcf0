"""Load time and memory of the page, and the figures of the web process, after 0, 20 and 100 jobs.

    python benchmarks/page.py [--jobs 0 20 100] [--json]

The jobs are made by an engine without a model, so what is measured is the page alone. One tab stays open all
the time; for each row further ones are opened, timed and closed again. Needs Chromium.
"""

from __future__ import annotations

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
sys.path.insert(0, str(ROOT))  # started as a file, Python looks in benchmarks/ only

from playwright.sync_api import sync_playwright  # noqa: E402

from tests.support.pages import CHROMIUM, FLAGS, free_port, write_photo  # noqa: E402

LOADS = 5
EVENTS = 20  # more than a job of one section has
PATIENCE = 120_000  # milliseconds; only a fault takes as long
# Milliseconds from the navigation until the form can be used and the state of the jobs stands beside it.
INTERACTIVE = """() => new Promise(done => {
    const ready = () => document.querySelector('#set-prompt textarea, .lt-request textarea')
        && document.querySelector('.lt-status') && document.querySelector('input[type=file]');
    const look = () => ready() ? done(performance.now()) : requestAnimationFrame(look);
    look();
})"""


@dataclass(frozen=True)
class Row:
    """Figures after a number of jobs. Times are medians in milliseconds, sizes bytes."""

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
    """The staged page in a process of its own."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.staged_program", str(folder), str(port)],
            cwd=ROOT, env={**os.environ, "GRADIO_TEMP_DIR": str(folder / "cache")}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._answer()

    def tell(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()

    def figures(self) -> dict[str, int]:
        self.tell(-1)
        return json.loads(self._answer())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def make_job(page: Any, server: Server, number: int) -> None:
    """One whole job by the page's own button."""
    before = page.locator(".lt-status").get_attribute("data-job")
    page.get_by_label("Prompt", exact=True).fill(f"the red ball moves right, number {number}")
    page.get_by_role("button", name="Start Generation").click()
    server.tell(EVENTS)
    page.wait_for_function(
        """before => {
            const {job, state} = document.querySelector('.lt-status').dataset;
            return job !== before && state === 'finished';
        }""",
        arg=before or "",
    )


def measure(browser: Any, page: Any, server: Server, jobs: int) -> Row:
    times = []
    for _ in range(LOADS):
        tab = browser.new_page()
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


def run(counts: list[int]) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = browser.new_page()
            page.set_default_timeout(PATIENCE)
            page.goto(server.url)
            page.wait_for_selector(".lt-status", state="attached")
            page.set_input_files("input[type=file]", str(write_photo(Path(folder) / "photo.png")))
            page.wait_for_selector(".lt-request .image-container img")
            seconds = page.get_by_label("number input for Total Video Length (Seconds)")
            seconds.fill("1")
            seconds.press("Tab")
            made = 0
            for count in sorted(counts):
                while made < count:
                    made += 1
                    make_job(page, server, made)
                rows.append(measure(browser, page, server, made))
        finally:
            browser.close()
            server.end()
    return rows


def table(rows: list[Row]) -> Iterator[str]:
    yield "jobs  load ms (slowest)  tab heap MB  nodes  listeners  server MB  threads  files"
    for row in rows:
        yield (
            f"{row.jobs:4}  {row.load_ms:7.0f} ({row.slowest_load_ms:6.0f})"
            f"  {row.tab_heap_bytes / 2**20:11.1f}  {row.tab_nodes:5}  {row.tab_listeners:9}"
            f"  {row.server_bytes / 2**20:9.1f}  {row.server_threads:7}  {row.server_files:5}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[0, 20, 100])
    parser.add_argument("--json", action="store_true", help="only JSON")
    arguments = parser.parse_args()
    rows = run(arguments.jobs)
    about = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "gradio": version("gradio"),
        "python": platform.python_version(),
    }
    if not arguments.json:
        sys.stdout.write("".join(f"{line}\n" for line in table(rows)))
    sys.stdout.write(json.dumps({**about, "rows": [asdict(row) for row in rows]}) + "\n")


if __name__ == "__main__":
    main()

"""The processor time of a page without news, in percent of a core. Chromium is needed.

    python benchmarks/page_idle.py [--seconds 60]

All processes of Chromium count, and the server with an engine without a model: with a new page, beside a
running job between two events, and with a finished video.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from playwright.sync_api import sync_playwright  # noqa: E402

from benchmarks.page import EVENTS, TIMEOUT, Server  # noqa: E402
from benchmarks.rows import Rows  # noqa: E402
from tests.support.pages import CHROMIUM, FLAGS, start, status, write_photo  # noqa: E402

# For half a minute after a page was loaded, Chromium compiles and tidies up, which is no cost of idleness.
_SETTLING = 30_000  # milliseconds


def chromium_processes() -> list[int]:
    """Return the browser's processes, which descend from this one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])

    def descends(process: int) -> bool:
        return process == os.getpid() or (process in parents and descends(parents[process]))

    found: list[int] = []
    for process in filter(descends, parents):
        with contextlib.suppress(OSError):
            if "chrom" in os.readlink(f"/proc/{process}/exe"):
                found.append(process)
    return found


def processor_seconds(processes: list[int]) -> float:
    """Return the seconds that processes have used so far."""
    times = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13] for one in processes]
    return sum(int(ticks) for both in times for ticks in both) / os.sysconf("SC_CLK_TCK")


def idle(seconds: float, rows: Rows) -> dict[str, dict[str, float]]:
    """Return the load of the browser and of the server, in percent of a core, for each state of the page."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def note(state: str) -> None:
            page.wait_for_timeout(_SETTLING)
            groups = {"browser": chromium_processes(), "server": [server.process_id]}
            before = {name: processor_seconds(group) for name, group in groups.items()}
            page.wait_for_timeout(1000 * seconds)
            found[state] = {
                name: round(100 * (processor_seconds(group) - before[name]) / seconds, 2)
                for name, group in groups.items()
            }
            rows.add({"state": state, **found[state]})

        try:
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(TIMEOUT)
            page.goto(server.url)
            page.wait_for_selector("html[data-ready]")
            note("idle")
            start(page, write_photo(Path(folder) / "photo.png"), seconds=1)
            server.report(4)
            status(page, state="running", section=1)
            note("running")
            server.report(EVENTS)
            status(page, state="finished")
            note("finished")
        finally:
            browser.close()
            server.end()
    return found


def main() -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of each measurement (default: 60)"
    )
    arguments, load = parser.parse_args(), os.getloadavg()[0]
    with Rows(__file__) as rows:
        found = {"load_before": load, "percent": idle(arguments.seconds, rows)}
        sys.stdout.write(json.dumps(found) + "\n")
    return rows.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())

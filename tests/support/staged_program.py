"""A program that serves the page with a staged engine, and can be killed.

    python -m tests.support.staged_program FOLDER PORT

It prints `up` when it serves the page. Each line of its standard input is a number: the number of further
events for the engine or, if it is negative, a request for the process's figures as a line of JSON. The
program ends when its input does.
"""

import json
import os
import resource
import sys
import threading
from pathlib import Path

from app.jobs.service import JobService
from app.web.serving import close_page, open_page
from tests.support.staged_engine import StagedEngine


def figures() -> dict[str, int]:
    """Return this process's present and peak resident bytes, and its numbers of threads and open files."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
    }


def main(folder: str, port: str) -> None:
    outputs, engine = Path(folder) / "outputs", StagedEngine()
    service = JobService(outputs, engine)
    page, _ = open_page(service, outputs, port=int(port))
    service.start()
    _say("up")
    for line in sys.stdin:
        count = int(line)
        if count < 0:
            _say(json.dumps(figures()))
        else:
            engine.go(count)
    for job in service.jobs():
        service.queue.cancel(job.id)
    service.stop()
    close_page(page)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A runner of the command line for tests."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from app.cli import main
from tests.support.jobs import ROOT, STAND_IN, TIMEOUT, write_blank_model, write_picture

JSON_FIELDS = {
    "job_started": {"sections", "frames", "width", "height", "attention", "kernels"},
    "stage_started": {"stage", "section", "expected_seconds", "seconds_to_video"},
    "reading": {"done_bytes", "total_bytes"},
    "step_done": {"section", "step", "steps", "preview", "skipped"},
    "piece_done": {"stage", "section", "piece", "pieces"},
    "section_finished": {"section", "sections", "video", "frames", "added_in_front", "thumbnail"},
    "warned": {"message"},
    "finished": {
        "video", "frames", "seconds", "peak_host_bytes", "peak_device_bytes", "cap_bytes", "bytes_streamed",
        "retries", "vae_tile_px", "advice", "steps_skipped",
    },
    "cancelled": {"video", "frames", "peak_host_bytes"},
    "failed": {"message", "remedy", "detail", "code", "setting", "video", "frames"},
}  # fmt: skip


class Program:
    """A runner of the command line in separate process groups, with a picture and a model."""

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        """Prepare the folder. The stand-in engine is used unless a real model is given."""
        self.folder = folder
        self.outputs = folder / "videos"
        self.model = model or write_blank_model(folder / "model")
        self._path = str(ROOT) if model else os.pathsep.join((str(ROOT), STAND_IN))
        self.picture = write_picture(folder / "picture.png")
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        *arguments: str,
        script: str | None = None,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        closed: int | None = None,
        background: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start the program; `closed` is the number of a standard stream that is closed.

        With `background`, Ctrl-C is ignored at the start, as after the `&` of a shell.
        """
        command = [sys.executable, "-m", "app", *arguments]
        if script is not None:
            command += ["--image", str(self.picture), "--model", str(self.model), "--out", str(self.outputs)]
            command += ["--prompt", script]
        if closed is not None:
            command = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command]
        if background:
            command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
        environment = {**os.environ, "PYTHONPATH": self._path}
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def run(self, *arguments: str, script: str | None = None) -> tuple[int, str, str]:
        """Run the program, and return its exit code, standard output and standard error."""
        process = self.start(*arguments, script=script)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out.decode(), err.decode()

    def end(self) -> None:
        for process in self._started:
            with process:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command within this process, and return exit code, standard output and standard error."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


def stream(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def until(process: subprocess.Popen[bytes], name: str, count: int = 1) -> dict[str, Any]:
    while True:
        event = json.loads(stream(process.stdout).readline())
        count -= event["event"] == name
        if not count:
            return event


def check_contract(lines: list[str]) -> list[dict[str, Any]]:
    """Check everything that is documented about the JSON output of any job, and return the events."""
    events = [json.loads(line) for line in lines]
    for event in events:
        assert list(event)[:3] == ["event", "job", "time"]
        assert set(event) - {"event", "job", "time"} == JSON_FIELDS[event["event"]]
        assert event.get("video") is None or Path(event["video"]).is_absolute()
    assert events[0]["event"] == "job_started"
    assert [event["event"] in ("finished", "cancelled", "failed") for event in events] == [False] * (
        len(events) - 1
    ) + [True]
    assert len({event["job"] for event in events}) == 1
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    return events

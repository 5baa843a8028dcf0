"""The page served for a test, and helpers that use it in the browser."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from app.jobs.service import JobService
from app.reading.process import ReadingRoom
from app.ui import scripts
from diffusers_helper.request import SETTINGS
from diffusers_helper.untrusted.confined import CONFINEMENT
from tests.support.jobs import ROOT, TIMEOUT
from tests.support.staged_engine import STEPS, StagedEngine

# The number of a job's events until its first section can be watched, and for each further section.
FIRST, FURTHER = 2 + 1 + STEPS + 2, 1 + STEPS + 2
# Returns the video's length and its position in seconds, and the mean brightness of the frame that it shows.
VIDEO = """async () => {
    // The one on top may change at any moment, and the other one never gets its data.
    let video;
    while (!(video = document.querySelector('.lt-stage video.lt-top')) || video.readyState < 2)
        await new Promise(requestAnimationFrame);
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 8;
    const context = canvas.getContext('2d');
    context.drawImage(video, 0, 0, 8, 8);
    const data = context.getImageData(0, 0, 8, 8).data;
    return {duration: video.duration, at: video.currentTime, light: data.reduce((a, b) => a + b) / 256};
}"""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    # Two processes fewer, which would begin anew for each window.
    "--in-process-gpu", "--enable-features=NetworkServiceInProcess2",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-features=" + ",".join((
        # Each window would load two pages for the suggestions of its address bar, which cost as much as ours.
        "WebUIOmniboxPopup", "WebUIOmniboxAimPopup",
        # Chromium reads the last such list alone, so these are what Playwright disables.
        "AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync",
        "DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay",
        "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding",
        "PreconnectToSearch", "ThirdPartyStoragePartitioning",
    )),
]  # fmt: skip
# The processes that read files for the pages of all tests, since starting them takes longer than reading.
_READING_ROOM = ReadingRoom()
needs_chromium = [
    pytest.mark.page,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_photo(path: Path) -> Path:
    """Write a picture of a red disc on a blue-green gradient, 320 by 240 pixels."""
    image = Image.linear_gradient("L").resize((320, 240)).convert("RGB")
    image = Image.blend(image, Image.new("RGB", image.size, (70, 140, 170)), 0.6)
    ImageDraw.Draw(image).ellipse((60, 80, 160, 180), fill=(210, 60, 45))
    image.save(path)
    return path


class Browser:
    """Chromium, where tests may evaluate expressions although the page's content policy forbids it."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def new_context(self, **options: Any) -> Any:
        return self._browser.new_context(**{"bypass_csp": True} | options)

    def new_page(self, **options: Any) -> Any:
        return self._browser.new_page(**{"bypass_csp": True} | options)


@dataclass(frozen=True)
class Stand:
    """A page with a staged engine, served by this process."""

    url: str
    outputs: Path
    service: JobService
    engine: StagedEngine
    engines: tuple[StagedEngine, ...] = ()


@contextlib.contextmanager
def staged_page(folder: Path, *engines: StagedEngine, **options: object) -> Iterator[Stand]:
    """Serve the page within the context, and end all its jobs afterwards."""
    from app.web.server import close_page, open_page

    outputs, engines = folder / "outputs", engines or (StagedEngine(),)
    service = JobService(outputs, *engines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CONFINEMENT, "run_reader", _READING_ROOM)
        patch.setenv("XDG_CACHE_HOME", str(folder / "facts"))  # without what other jobs took
        page, url = open_page(service, outputs, port=free_port(), **options)  # pyright: ignore[reportArgumentType]
        service.start()
        try:
            yield Stand(url, outputs, service, engines[0], engines)
        finally:
            for job in service.jobs():
                service.queue.cancel(job.id)
            service.stop()
            close_page(page)


@contextlib.contextmanager
def staged_page_with_uploads(folder: Path) -> Iterator[Stand]:
    """Serve the page as `staged_page` does, with a folder of its own for uploads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
        with staged_page(folder) as stand:
            yield stand


class PageProgram:
    """The program `demo_gradio.py`, running in its own process and process group."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder, self.outputs = folder, folder / "outputs"
        command = [sys.executable, str(ROOT / "demo_gradio.py"), "--port", "0"]
        command += ["--outputs", str(self.outputs), *arguments]
        surroundings = {**os.environ, "GRADIO_TEMP_DIR": str(folder / "cache"), **environment}
        self.process = subprocess.Popen(
            command, cwd=folder, env=surroundings, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.url = ""

    def wait_until_up(self) -> str:
        """Wait until the page is served, and return its address."""
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.url = line.split()[-1].rstrip("/")
        return self.url

    def result(self) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error of a program that ends by itself."""
        out, err = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, out, err

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def strict_window(browser: Any, stand: Stand, complaints: tuple[str, ...] = ("error",)) -> Iterator[Any]:
    """Open the page in a window of 1440 by 900; fail at the end if the console holds such complaints."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(TIMEOUT * 1000)
    page = context.new_page()
    reported: list[str] = []
    page.on(
        "console",
        lambda message: (
            reported.append(f"{message.text} ({message.location['url']})")
            if message.type in complaints
            else None
        ),
    )
    page.on("pageerror", lambda error: reported.append(str(error)))
    visit(page, stand)
    yield page
    context.close()
    assert not reported, reported


def visit(page: Any, stand: Stand) -> None:
    """Open the page, and wait until the form's scripts have run."""
    page.goto(stand.url)
    page.wait_for_selector(".lt-view")
    page.wait_for_selector("html[data-ready]")


def start(page: Any, photo: Path | None, prompt: str = "the red ball moves right", **numbers: float) -> None:
    """Fill in the form and press Start."""
    if photo is not None:
        page.set_input_files("input[type=file]", str(photo))
        page.wait_for_selector("#set-image img")
    page.get_by_label("Prompt", exact=True).fill(prompt)
    if numbers.keys() - {"seconds"}:
        open_folds(page)
    for name, value in numbers.items():
        field = page.locator("#form").get_by_label(
            re.compile(rf"^(number input for )?{re.escape(SETTINGS[name].label)}")
        )
        field.fill(f"{value:g}")
        field.press("Tab")
    page.get_by_role("button", name="Start Generation").click()


def open_folds(page: Any) -> None:
    page.wait_for_selector("html[data-ready]")
    page.evaluate("document.querySelectorAll('.lt-fold, #expert').forEach((one) => { one.open = true; })")
    page.wait_for_selector("#set-preserved_gb input")


def module(name: str) -> str:
    """Return the expression that imports one of the page's scripts."""
    return f"import(new URL('{scripts.folder()}/{name}', document.baseURI))"


def choose_model(page: Any, title: str) -> None:
    page.get_by_label("Model", exact=True).select_option(label=title)


def model_chosen(page: Any, title: str) -> None:
    """Wait until the form has chosen the model."""
    page.wait_for_function(
        "title => document.querySelector('#in-model').selectedOptions[0]?.text === title", arg=title
    )


def status(page: Any, **facts: object) -> Any:
    """Wait until the status has these attributes, such as `state="running", frames=33`, and return it."""
    selector = ".lt-status" + "".join(f'[data-{name}="{value}"]' for name, value in facts.items())
    page.wait_for_selector(selector)
    return page.locator(selector)


def notice(page: Any, text: str) -> Any:
    """Wait until the line beside Start contains the text, and return it."""
    found = page.locator("#notice").filter(has_text=text)
    found.wait_for()
    return found


def no_notice(page: Any) -> None:
    """Wait until the line beside Start is gone and takes no space."""
    page.wait_for_function("!document.querySelector('#notice')?.offsetHeight")

"""Fixtures that many tests share."""

import asyncio
import gc
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

from tests.support.forked_engine import Forks
from tests.support.jobs import TIMEOUT
from tests.support.languages import WATCH, cut, untranslated
from tests.support.pages import CHROMIUM, FLAGS, Browser, Stand, staged_page, visit, write_photo

# This is set before torch is imported, and inherited by the engines that tests start: on networks this small
# a second thread gains nothing, and on busy cores threads that wait for each other are many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Else each worker, and each program that tests start, would compile all that it imports of this checkout.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Temporary folders lie in main memory if it has room and may hold programs: a run syncs many thousand times,
# which takes milliseconds each on a disk.
_MEMORY, _DISK = Path("/dev/shm"), "/var/tmp"
if _MEMORY.is_dir():
    _room = os.statvfs(_MEMORY)
    if _room.f_bavail * _room.f_frsize > 4 * 2**30 and not _room.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("TMPDIR", str(_MEMORY))
        tempfile.tempdir = None  # pytest has asked for it already


def pytest_configure(config: pytest.Config) -> None:
    # Programs that tests start inherit the signals that this process ignores, as under `nohup`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Each run uses the same examples unless it is given a seed, and no example fails because of its duration.
    is_same = config.getoption("--hypothesis-seed") is None
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "longtake", database=None, deadline=None, derandomize=is_same, suppress_health_check=slow
    )
    settings.load_profile("longtake")
    config.pluginmanager.register(_FailuresAtOnce(config))


class _FailuresAtOnce:
    """Names each test that fails as soon as it has failed, also if the run is ended before its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and (terminal := self._plugins.get_plugin("terminalreporter")):
            terminal.write_line(f"\n{report.nodeid} ({report.when}): {report.longreprtext[-2000:]}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Make the tests, and all that their files import, without collections of garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have most slow tests, so that at the end none is left to one worker alone."""
    slow = Counter(
        item.path for item in items if {"slow", "page"} & {mark.name for mark in item.iter_markers()}
    )
    items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape halves of characters in what a test has logged: no process could send them to another."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide from tests, and from what they start, what Longtake has learned on this machine."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=_DISK) as cache:
        patch.setenv("XDG_CACHE_HOME", cache)  # a program looks there whether a model has room
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        for name in [name for name in os.environ if name.startswith("LONGTAKE_")]:
            if not name.startswith("LONGTAKE_TEST_"):
                patch.delenv(name)
        patch.setenv("LONGTAKE_ENCODINGS", "0")  # else the stages of a job would depend on the tests before
        yield


@pytest.fixture(scope="session", autouse=True)
def room_of_a_disk() -> Iterator[None]:
    """Tell of temporary folders in main memory the room of a disk, into which a model fits."""
    usage, device = shutil.disk_usage, _MEMORY.stat().st_dev if _MEMORY.is_dir() else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            shutil, "disk_usage", lambda path: usage(_DISK if os.stat(path).st_dev == device else path)
        )
        yield


@pytest.fixture(scope="module", autouse=True)
def no_garbage_of_others() -> None:
    """Leave what exists already out of collections of garbage, as the engine does with the libraries.

    imageio collects twice for each video that it reads, and would visit a million objects each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed the random numbers, so that no test depends on those that tests before it drew."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_filters_of_others() -> Iterator[None]:
    """Take back the filters that a server adds to the handlers of the log, which are those of all tests."""
    filters = {handler: [*handler.filters] for handler in logging.getLogger().handlers}
    yield
    for handler, before in filters.items():
        handler.filters[:] = before


@pytest.fixture(autouse=True)
def no_handlers_of_others() -> Iterator[None]:
    """Take back the handlers that a program's start leaves, and the signals that a thread's work blocks."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """Return an empty folder that lies on a disk, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(dir=_DISK) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a complete tiny model, made once. Tests only read it."""
    # Only the tests with a model need torch, which this imports.
    from tests.support.tiny_model import write_tiny_model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_helios(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a complete tiny Helios model, made once. Tests only read it."""
    from tests.support.tiny_helios import write_tiny_helios

    return write_tiny_helios(tmp_path_factory.mktemp("models") / "helios")


@pytest.fixture(scope="session")
def tiny_helios_distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same with the scheduler of a distilled model."""
    from tests.support.tiny_helios import write_tiny_helios

    return write_tiny_helios(tmp_path_factory.mktemp("models") / "distilled", is_distilled=True)


@pytest.fixture(scope="session")
def tiny_wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a complete tiny Wan model, made once. Tests only read it."""
    from tests.support.tiny_wan import write_tiny_wan

    return write_tiny_wan(tmp_path_factory.mktemp("models") / "wan")


@pytest.fixture(scope="session")
def tiny_wan_fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same with the pipeline of the distilled model."""
    from tests.support.tiny_wan import write_tiny_wan

    return write_tiny_wan(tmp_path_factory.mktemp("models") / "wan-fast", is_fast=True)


@pytest.fixture(scope="session")
def tiny_wan_a14b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same with two transformers."""
    from tests.support.tiny_wan import write_tiny_wan

    return write_tiny_wan(tmp_path_factory.mktemp("models") / "wan-a14b", has_experts=True)


@pytest.fixture(scope="session")
def deep_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny model with more blocks, made once. Tests only read it."""
    from tests.support.deep_model import write_deep_model

    return write_deep_model(tiny_model, tmp_path_factory.mktemp("models") / "deep")


@pytest.fixture(scope="module")
def deep_models(deep_model: Path) -> Any:
    from tests.support.making import load_tiny

    return load_tiny(deep_model)


@pytest.fixture(scope="session")
def small_scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a picture of 64 by 64 pixels."""
    from tests.support.making import write_scene

    return write_scene(tmp_path_factory.mktemp("scene") / "scene.png", 64, 64)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """Start Chromium, once for all modules, and return it with the event loop of Playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    run = playwright.sync_playwright().start()
    loop = asyncio.get_running_loop()
    launched = run.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=TIMEOUT * 1000)
    asyncio._set_running_loop(None)
    yield Browser(launched), loop
    asyncio._set_running_loop(loop)
    launched.close()
    run.stop()


@pytest.fixture(scope="module")
def browser(chromium: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """Return Chromium, whose event loop counts as running until the end of the module, and not beyond."""
    browser, loop = chromium
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo(tmp_path_factory.mktemp("photo") / "photo.png")


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    with staged_page(tmp_path) as stand:
        yield stand


@pytest.fixture
def screen() -> dict[str, Any]:
    """Return the options of the window that `page` opens."""
    return {}


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Any, stand: Stand, screen: dict[str, Any]) -> Iterator[Any]:
    """Open the page in a fresh tab.

    The test fails if a script fails or asks another host, or a text has no translation or no room for one.
    """
    context = browser.new_context(**screen)
    context.set_default_timeout(TIMEOUT * 1000)
    asked: list[str] = []
    failed: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.add_init_script(WATCH)
    page = context.new_page()
    page.on("pageerror", lambda error: failed.append(str(error)))
    visit(page, stand)
    yield page
    texts = untranslated(page, request.path)
    too_wide = cut(page)
    context.close()
    assert not texts, texts
    assert not too_wide, too_wide
    assert not failed, failed
    hosts = {urlsplit(url).netloc for url in asked if urlsplit(url).scheme in ("http", "https", "ws", "wss")}
    assert hosts == {urlsplit(stand.url).netloc}

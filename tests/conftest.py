"""Fixtures that many tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.support.pages import CHROMIUM, FLAGS, Stand, staged_page, visit, write_photo

if TYPE_CHECKING:
    from diffusers_helper.models.loaders import Models

# Before torch is imported, and inherited by the engines that tests start: on networks this small a second
# thread gains nothing, and on busy cores the threads' waiting for each other makes them many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure() -> None:
    """Programs that tests start inherit ignored signals, as from `nohup` or a shell's `&`; they test them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete tiny model, made once. Read-only by agreement."""
    from tests.support.tiny_model import write_tiny_model  # torch: only for the tests that ask for a model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def deep_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with more blocks, made once. Read-only by agreement."""
    from tests.support.deep_model import write_deep_model

    return write_deep_model(tiny_model, tmp_path_factory.mktemp("models") / "deep")


@pytest.fixture(scope="module")
def deep_models(deep_model: Path) -> Models:
    from tests.support.making import load_tiny

    return load_tiny(deep_model)


@pytest.fixture(scope="session")
def small_scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture of 64 by 64 pixels."""
    from tests.support.making import write_scene

    return write_scene(tmp_path_factory.mktemp("scene") / "scene.png", 64, 64)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Not for the whole session: while it lives, its event loop counts as running in the tests' thread.
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo(tmp_path_factory.mktemp("photo") / "photo.png")


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    with staged_page(tmp_path) as stand:
        yield stand


@pytest.fixture
def page(browser: Any, stand: Stand) -> Iterator[Any]:
    """A fresh tab that has the page open; fails if the page asked anybody else for anything."""
    context = browser.new_context()
    context.set_default_timeout(15_000)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    visit(page, stand)
    yield page
    context.close()
    hosts = {urlsplit(url).netloc for url in asked if urlsplit(url).scheme in ("http", "https", "ws", "wss")}
    assert hosts == {urlsplit(stand.url).netloc}

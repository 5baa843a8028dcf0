"""Tests of the page's scripts in Chromium: all of them run, and the browser reports no error."""

from pathlib import Path
from typing import Any

import app.ui
from tests.support.pages import FIRST, Stand, needs_chromium, open_folds, start, status, visit

pytestmark = needs_chromium


def test_they_run_without_a_complaint(browser: Any, stand: Stand, photo: Path) -> None:
    complaints: list[str] = []
    loaded: set[str] = set()
    page = browser.new_page(bypass_csp=False)
    page.on("console", lambda message: complaints.append(f"{message.text} {message.location['url']}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"{request.failure} {request.url}"))
    page.on("response", lambda answer: loaded.add(answer.url.rpartition("/")[2]) if answer.ok else None)
    visit(page, stand)
    start(page, photo)
    stand.engine.go(FIRST)
    page.wait_for_selector('.lt-stage[data-state="video"]')
    page.wait_for_selector(".lt-crop:not([hidden])")
    status(page, state="running", section=1)
    open_folds(page)  # their scripts run once they are open
    page.wait_for_selector(".lt-loras p:not(:empty), .lt-loras li", state="attached")
    page.close()
    assert complaints == []
    assert {module.name for module in Path(app.ui.__file__).parent.rglob("*.js")} <= loaded

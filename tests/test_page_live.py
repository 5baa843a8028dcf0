"""The right side of the page in Chromium, over an engine that goes on when the test says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import FIRST, FURTHER, VIDEO, Stand, needs_chromium, start, status, visit
from tests.support.staged_engine import FAILING_PROMPT, MESSAGE, REMEDY

pytestmark = needs_chromium


def test_a_video_grows_section_by_section(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, seconds=2.4, seed=7)
    job = status(page, state="running").get_attribute("data-job")
    stand.engine.go(FIRST - 3)
    page.wait_for_selector('.lt-latent[data-section="1"] img')
    assert "Section 1 of 2, step" in status(page, step=1).inner_text()
    stand.engine.go(3)
    status(page, frames=33)
    first = page.evaluate(VIDEO)
    assert first["duration"] == pytest.approx(33 / 30, abs=0.02)
    assert first["light"] > 60
    stand.engine.go(FURTHER)
    status(page, frames=73)
    stand.engine.go()
    assert "100" in status(page, state="finished", frames=73).get_attribute("data-percent")
    page.wait_for_function("document.querySelector('.lt-stage video').src.endsWith('/video.mp4')")
    last = page.evaluate(VIDEO)
    assert last["duration"] == pytest.approx(73 / 30, abs=0.02)
    assert last["light"] > 60
    assert stand.service.job(job).request.seed == 7
    with page.expect_download() as download:
        page.get_by_text("Download (2.43 s, 73 frames)").click()
    assert Path(download.value.path()).read_bytes() == (stand.outputs / job / "video.mp4").read_bytes()


def test_what_comes_in_front_moves_the_moment_that_is_watched(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, seconds=2.4)
    stand.engine.go(FIRST)
    status(page, frames=33)
    page.evaluate(VIDEO)
    page.evaluate("() => { const v = document.querySelector('video'); v.pause(); v.currentTime = 0.5 }")
    page.wait_for_function("!document.querySelector('video').seeking")
    stand.engine.go(FURTHER)
    page.wait_for_function("document.querySelector('video').duration > 2")
    page.wait_for_function("!document.querySelector('video').seeking")
    assert page.evaluate(VIDEO)["at"] == pytest.approx(0.5 + 40 / 30, abs=0.04)
    assert page.evaluate("document.querySelector('video').paused")


def test_end_keeps_the_video_so_far(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo)
    stand.engine.go(FIRST)
    status(page, state="running", frames=33)
    page.get_by_role("button", name="End Generation").click()
    ended = status(page, state="cancelled", frames=33)
    assert "Download what there is (1.10 s, 33 frames)" in ended.inner_text()
    assert page.evaluate(VIDEO)["duration"] == pytest.approx(1.1, abs=0.02)
    page.locator("button:disabled", has_text="End Generation").wait_for()


def test_reload_and_a_second_tab_find_the_running_job(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, seconds=2.4)
    stand.engine.go(FIRST)
    job = status(page, state="running", frames=33).get_attribute("data-job")
    page.reload()
    status(page, state="running", frames=33, job=job)
    second = page.context.new_page()
    visit(second, stand)
    status(second, state="running", frames=33, job=job)
    page.close()
    stand.engine.go(FURTHER + 1)
    status(second, state="finished", frames=73, job=job)
    second.reload()
    status(second, state="finished", frames=73, job=job)


def test_a_failure_is_a_sentence_and_a_remedy(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, prompt=FAILING_PROMPT)
    stand.engine.go(FIRST)
    failed = status(page, state="failed")
    assert f"{MESSAGE} {REMEDY}" in failed.inner_text()
    assert failed.locator("[role=alert]").count() == 1
    assert "Traceback" not in page.content()

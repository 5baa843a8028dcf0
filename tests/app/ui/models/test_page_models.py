"""Tests of the Models tab in Chromium, with a local double of the hub and a staged engine."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.models.downloads import absence_of
from diffusers_helper.models.registry import find_model
from tests.support.hub import Hub
from tests.support.jobs import wait_until
from tests.support.pages import (
    FIRST,
    Stand,
    choose_model,
    needs_chromium,
    no_notice,
    notice,
    staged_page,
    start,
    status,
)
from tests.support.published import part_folder

pytestmark = needs_chromium
INFO = find_model("framepack-f1")
CARD = ".lt-model-card[data-model=framepack-f1]"


@pytest.fixture
def stand(lit_hub: tuple[Hub, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    with staged_page(tmp_path) as stand:
        yield stand


def open_models(page: Any) -> None:
    page.get_by_role("tab", name="Models").click()
    page.wait_for_selector(".lt-models[data-state=known]")


def state(page: Any, name: str) -> Any:
    """Wait until the card of the model has this state, and return it."""
    page.wait_for_selector(f"{CARD}[data-state={name}]")
    return page.locator(CARD)


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=f"{name}: FramePack F1").click()


def get(page: Any) -> None:
    """Press Download, and agree to it."""
    press(page, "Download")
    page.get_by_role("button", name="Download it").click()


def test_a_model_is_got_paused_resumed_checked_and_removed(
    page: Any, stand: Stand, lit_hub: tuple[Hub, Path]
) -> None:
    hub, cache = lit_hub
    hub.gate.clear()
    open_models(page)
    card = state(page, "missing")
    assert "About 39.4 GB to download" in card.inner_text()
    press(page, "Download")
    question = page.get_by_role("alertdialog", name="Download FramePack F1?")
    assert "about 39.4 GB from huggingface.co" in question.inner_text()
    assert "into $HF_HUB_CACHE, where 1024 GB are free" in question.inner_text()
    assert hub.asked == []
    question.get_by_role("button", name="Not now").click()
    get(page)
    state(page, "getting")
    words = card.locator(".lt-model-progress")
    page.wait_for_function(
        f"() => /of 15 MB/.test(document.querySelector('{CARD} .lt-model-progress').textContent)"
    )
    assert page.get_by_role("tab", name=re.compile(r"Models, \d+ % downloaded")).count() == 1
    press(page, "Pause")
    state(page, "paused")
    assert re.fullmatch(r"0\.00\d of 39\.4 GB", words.inner_text())
    hub.gate.set()
    press(page, "Resume")
    state(page, "complete")
    assert absence_of(INFO) is None
    assert page.evaluate("document.activeElement.dataset.action") == "use"
    press(page, "Verify")
    card.locator(".lt-model-checked p").first.wait_for()  # random bytes are no weights, but they are whole
    assert "wrong checksum" not in card.inner_text()
    press(page, "Remove")
    question = page.get_by_role("alertdialog", name="Remove FramePack F1?")
    assert "This deletes 15 MB of FramePack F1: transformer, vae," in question.inner_text()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.action") == "remove"
    press(page, "Remove")
    page.get_by_role("button", name="Remove 15 MB").click()
    state(page, "missing")
    assert not part_folder(cache, INFO, "vae").exists()


def test_a_video_waits_for_its_model_and_the_demo_goes_on(
    page: Any, stand: Stand, lit_hub: tuple[Hub, Path], photo: Path
) -> None:
    hub, _ = lit_hub
    hub.gate.clear()
    choose_model(page, "FramePack F1")
    note = page.locator("#model-note")
    note.get_by_text("is not on this machine").wait_for()
    link = note.get_by_role("link", name="Models")
    assert link.get_attribute("href") == "#models/framepack-f1"
    start(page, photo, prompt="with the large one", seconds=2.4)
    notice(page, "The video begins when the download is complete")
    page.get_by_role("button", name="Not now").click()
    no_notice(page)
    assert (hub.asked, stand.service.jobs()) == ([], [])
    page.locator("#start").click()
    page.get_by_role("button", name=re.compile("Download .* and start")).click()
    page.get_by_text("Waiting", exact=True).first.wait_for()
    page.get_by_text(re.compile(r"Its model is being downloaded: \d+ %")).first.wait_for()

    choose_model(page, "Longtake demo model")
    stand.engine.go(FIRST)
    start(page, None, seconds=2.4)
    status(page, state="running")
    page.get_by_role("tab", name="Queue").click()
    row = page.locator(".lt-row", has=page.get_by_text("with the large one", exact=True))
    row.get_by_text("Its model is being downloaded").wait_for()
    assert page.locator(".lt-row[data-state=running]").count() == 1
    stand.engine.go(1000)
    hub.gate.set()
    wait_until(lambda: len(stand.service.finished_jobs(5)) == 2)
    assert absence_of(INFO) is None


def test_a_failure_is_told_with_another_try(page: Any, stand: Stand, lit_hub: tuple[Hub, Path]) -> None:
    hub, _ = lit_hub
    hub.pages.add("model.safetensors")
    open_models(page)
    get(page)
    card = state(page, "failed")
    problem = card.get_by_role("alert")
    assert "cannot be downloaded (the server answered with a web page" in problem.inner_text()
    assert "Check the network connection" in problem.inner_text()
    hub.pages.clear()
    press(page, "Try again")
    state(page, "complete")
    assert not problem.is_visible()


def test_the_address_leads_to_a_model_and_its_tables(page: Any, stand: Stand) -> None:
    page.goto(f"{stand.url}#models/framepack-i2v")
    page.wait_for_selector(".lt-models[data-state=known]")
    page.wait_for_function("() => document.activeElement.textContent === 'FramePack I2V'")
    card = page.locator(".lt-model-card[data-model=framepack-i2v]")
    card.get_by_text("More about it").click()
    rows = card.locator("details").first.locator("tbody tr").all_inner_texts()
    assert len(rows) == 8
    assert rows[0].split("\t")[:3] == ["Transformer", "missing", "24 GB"]
    assert "also for framepack-f1" in rows[1]

"""Tests of what the page tells while a slow first job is prepared."""

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.request import GenerationRequest
from tests.support.pages import Stand, needs_chromium

pytestmark = needs_chromium


def submit(stand: Stand, photo: Path) -> None:
    stand.service.queue.add(GenerationRequest(image=str(photo), prompt="the red ball moves right"))


def test_a_slow_first_job_tells_each_stage_its_share_and_when_the_first_part_comes(
    page: Any, stand: Stand, photo: Path
) -> None:
    stand.engine.foreseen = 60.0
    submit(stand, photo)

    def told(events: int, headline: str, remark: str, time: str) -> None:
        stand.engine.go(events)
        page.locator(".lt-headline").get_by_text(headline, exact=True).wait_for()
        for part, words in ((".lt-remark", remark), (".lt-eta", time)):
            page.wait_for_function(
                "([part, words]) => new RegExp(words).test(document.querySelector(part).textContent)",
                arg=[part, f"^{words}$"],
            )

    shown, soon = r"\d+ s of about 1 min\.( The computer stays awake meanwhile\.)?", r" · \d+ s so far"
    told(3, "Trying attention kernels: 2 of 4", shown, r"\d+ s so far")
    told(4, "Loading the model", shown, f"first part in about 6 min{soon}")
    told(3, "Reading the model: 12 of 40 GB", shown, f"first part in about [56] min( 30 s)?{soon}")
    told(8, "Encoding the prompt", shown, f"first part in about [45] min( 30 s)?{soon}")
    told(6, "Choosing convolutions: 5 of 12", shown, f"first part in about [34] min( 30 s)?{soon}")
    told(8, "Encoding the picture", shown, f"first part in about [23] min( 30 s)?{soon}")
    told(
        1,
        "First step: one-time kernel setup",
        r"for \d+ s\.",
        f"first part in about [12] min( 30 s)?{soon}",
    )
    assert page.locator('.lt-pulse[data-kind="alive"]').count() == 1


def test_a_stage_that_takes_longer_than_foreseen_says_so(
    page: Any, stand: Stand, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.ui.live.words._MIN_EXPECTED_SECONDS", 0.0)
    stand.engine.foreseen = 0.001
    submit(stand, photo)
    stand.engine.go(7)
    page.locator(".lt-headline").get_by_text("Loading the model", exact=True).wait_for()
    page.locator(".lt-remark").get_by_text("longer than expected.").wait_for()
    page.locator(".lt-eta").get_by_text("first part later than expected · ").wait_for()

"""Tests of the preview of the section in the making."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers_helper.request import GenerationRequest
from tests.support.pages import Stand, needs_chromium

pytestmark = needs_chromium


def test_the_preview_can_be_put_away_and_stays_away(page: Any, stand: Stand, photo: Path) -> None:
    stand.service.queue.add(GenerationRequest(image=str(photo), prompt="the red ball moves right"))
    stand.engine.go(4)
    page.locator(".lt-latent").wait_for()
    small = page.locator(".lt-latent").bounding_box()["width"]
    page.get_by_role("button", name="Enlarge").click()
    assert page.locator(".lt-latent").bounding_box()["width"] > 1.5 * small
    page.get_by_role("button", name="Hide").click()
    page.reload()
    page.get_by_role("button", name="Show preview").wait_for()
    assert not page.locator(".lt-latent").is_visible()
    page.get_by_role("button", name="Show preview").press("Enter")
    page.locator(".lt-latent").wait_for()

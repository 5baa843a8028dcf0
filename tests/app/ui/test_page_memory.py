"""Tests of memory on the page in Chromium: the plan under its sliders, the refusal, the plot of a job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.jobs.downloads import manager
from app.machine import machine_of_card
from app.ui import catalogue
from diffusers_helper.machine.sysfs import HostMemory
from diffusers_helper.planning.profiles import profile_for
from diffusers_helper.units import GB
from tests.app.ui.test_page_form import kept
from tests.support.pages import (
    Stand,
    needs_chromium,
    staged_page,
    start,
    status,
)

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """Serve the page of a machine with a Radeon of 24 GB, FramePack preselected."""
    folder, profile = tmp_path_factory.mktemp("served"), profile_for(machine_of_card("gfx1100:24"), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
        patch.setattr(catalogue, "absence_of", lambda info: None)  # as if the model were here
        patch.setattr(manager, "missing_components", lambda info: [])
        patch.setattr("app.ui.planner.host_memory", lambda: HostMemory(64 * GB, 60 * GB, 0, 0))
        with staged_page(folder, model="framepack-i2v", profile=profile) as stand:
            yield stand


def head(page: Any, text: str) -> None:
    """Wait until the head of the fold contains the text."""
    page.locator(f'#fold-memory > summary[data-state^="{text}"]').wait_for()


def open_memory(page: Any) -> None:
    head(page, "fits, peak ")
    page.evaluate("document.querySelectorAll('#fold-memory, #expert').forEach((one) => { one.open = true; })")
    page.locator("#set-preserved_gb input[type=number]").wait_for()


def put(page: Any, name: str, value: float) -> None:
    field = page.locator(f"#set-{name} input[type=number]")
    field.fill(f"{value:g}")
    field.press("Tab")


def number(page: Any, name: str) -> float:
    return float(page.locator(f"#set-{name} input[type=number]").input_value())


def reported(page: Any, text: str) -> str:
    found = page.locator(".lt-plan-say").filter(has_text=text)
    found.wait_for()
    return found.inner_text()


def test_the_settings_survive_a_reload_and_can_be_reset(page: Any) -> None:
    open_memory(page)
    put(page, "vram_cap_gb", 9.5)
    reported(page, "of 9.5 GB.")
    kept(page, '"vram_cap_gb":9.5')
    # Settings of this machine are not kept, so that the page of another machine shows its own.
    assert not page.evaluate("localStorage.getItem('longtake.form').includes('preserved_gb')")
    page.reload()
    reported(page, "of 9.5 GB.")
    assert number(page, "vram_cap_gb") == 9.5
    page.get_by_role("button", name="Reset to defaults").click()
    reported(page, "of 20 GB.")
    assert (number(page, "vram_cap_gb"), number(page, "preserved_gb")) == (20, 18)


def test_every_setting_of_the_vae_can_be_made_and_is_planned_with(
    page: Any, stand: Stand, photo: Path
) -> None:
    open_memory(page)
    assert number(page, "vae_tile") == 256
    reported(page, "The VAE works in tiles of 256 pixels, which changes the pixels slightly")
    page.locator("#set-vae_precision").get_by_label("16 bit, wide range").check()
    own = {"vae_tile": 128, "vae_chunk": 2, "vae_threshold": 0.75, "vae_cleanup": 4}
    for name, value in own.items():
        put(page, name, value)
    reported(page, "The VAE works in tiles of 128 pixels, which changes")
    reported(page, "The VAE chunk is 2 instead of the VAE")
    start(page, photo, prompt="a ball")
    status(page, state="running")
    (job,) = stand.service.jobs()
    assert {name: getattr(job.request, name) for name in own} == own
    assert job.request.vae_precision == "bf16"
    page.locator(".lt-live .lt-details > summary").click()
    page.locator(".lt-live .lt-settings").get_by_text("16 bit, wide range").wait_for()

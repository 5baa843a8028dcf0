"""Tests of memory on the page in Chromium: the plan under its sliders, the refusal, the plot of a job."""

import re
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
    no_notice,
    notice,
    staged_page,
    start,
    status,
)

pytestmark = needs_chromium
# Returns the positions of the cap's line and of the ends of weights and all else, as shares of the bar.
BAR = """() => {
    const bar = document.querySelector('.lt-mem-bar').getBoundingClientRect();
    const cap = document.querySelector('.lt-mem-cap').getBoundingClientRect();
    const parts = [...document.querySelectorAll('.lt-mem-bar i')].map((part) => part.getBoundingClientRect());
    return [cap.left, parts[0].right, parts.at(-1).right].map((at) => (at - bar.left) / bar.width);
}"""


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


def test_the_plan_moves_with_the_sliders_and_with_the_form(page: Any) -> None:
    open_memory(page)
    text = page.locator(".lt-machine").inner_text()
    assert " ".join(text.split()) == "gfx1100 with 24 GB, FramePack I2V memory cap 20 GB"
    assert (number(page, "vram_cap_gb"), number(page, "preserved_gb")) == (20, 18)
    before = reported(page, "58 of 60 blocks of the transformer are streamed, 22.3 GB per step: about 1.9 s")
    assert re.match(r"Fits: peak \d\.\d of 20 GB\.", before)
    cap, weights, used = page.evaluate(BAR)
    assert cap == pytest.approx(20 / 24, abs=0.02)
    assert 0 < weights < used < cap
    page.get_by_text("Stage by stage").click()
    put(page, "preserved_gb", 0)
    page.wait_for_function(f"({BAR})()[1] > 0.5")
    assert page.evaluate(BAR)[2] <= cap
    less = reported(page, "blocks of the transformer are streamed")
    assert float(re.findall(r"peak ([\d.]+)", less)[0]) > 15
    # The table stays open after the plan was replaced.
    assert page.locator(".lt-plan-stages tbody tr").nth(4).is_visible()
    put(page, "vram_cap_gb", 12.5)
    reported(page, "of 12.5 GB.")
    assert page.evaluate(BAR)[0] == pytest.approx(12.5 / 24, abs=0.02)


def test_the_fewest_copies_and_the_recommended_set_up_are_a_press_away(page: Any) -> None:
    open_memory(page)
    line = page.locator(".lt-preserved")
    line.get_by_text("18 of 20 GB are preserved, as docs/amd-memory.md sets it").wait_for()
    button = line.get_by_role("button", name=re.compile("Fewest copies: preserve .* GB"))
    value = float(re.findall(r"[\d.]+", button.inner_text())[0])
    assert 0 < value < 10
    button.press("Enter")
    more = reported(page, "of 60 blocks of the transformer are streamed")
    page.wait_for_function(f"({BAR})()[1] > 0.5")
    assert number(page, "preserved_gb") == value
    assert page.evaluate("document.activeElement.type") == "number"
    assert more
    reported(page, "At least 16 GB of preserved memory are advised for this card")
    line.get_by_role("button", name="Automatic: preserve 18 GB").click()
    reported(page, "58 of 60 blocks of the transformer are streamed")
    assert number(page, "preserved_gb") == 18

    page.get_by_text("This is the recommended set-up for this card.").wait_for()
    put(page, "preserved_gb", 6)
    page.locator("#set-weight_dtype").get_by_label("8 bit, whole numbers").check()
    reported(page, ". 7 of 60 blocks")  # the answer for both changes, so that the button stays in its place
    page.set_viewport_size({"width": 390, "height": 844})
    button = page.get_by_role("button", name="Use the recommended set-up")
    button.scroll_into_view_if_needed()
    box = button.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    button.focus()
    page.keyboard.press("Enter")
    reported(page, "58 of 60 blocks of the transformer are streamed, 22.3 GB per step")
    page.get_by_text("This is the recommended set-up for this card.").wait_for()
    assert number(page, "preserved_gb") == 18
    assert page.locator("#set-weight_dtype input:checked").input_value() == "default"
    assert page.evaluate("document.activeElement.closest('#set-preserved_gb') !== null")
    assert button.count() == 0


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


def test_what_does_not_fit_is_refused_at_the_start(page: Any, stand: Stand, photo: Path) -> None:
    open_memory(page)
    put(page, "vram_cap_gb", 3.5)
    head(page, "does not fit")
    start(page, photo, prompt="a ball")
    sentence = notice(page, "Does not fit").inner_text()
    reported(page, sentence)
    assert stand.service.jobs() == []
    page.wait_for_function("document.activeElement.closest('#set-vram_cap_gb') !== null")
    least = float(re.findall(r"Set VRAM Cap to ([\d.]+) or more", sentence)[0])
    put(page, "vram_cap_gb", least)
    head(page, "fits, peak ")
    no_notice(page)
    page.locator("#start").click()
    status(page, state="running")
    (job,) = stand.service.jobs()
    assert (job.request.vram_cap_gb, job.request.preserved_gb) == (least, None)


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

"""Tests of the page with a model of another family: what it offers, refuses and makes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import pytest

from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import (
    VIDEO,
    PageProgram,
    choose_model,
    model_chosen,
    needs_chromium,
    notice,
    open_folds,
    start,
    status,
)

pytestmark = needs_chromium
# What FramePack has and Helios lacks
LACKING = ("#set-mode", "#set-loop", "#set-step_cache", "#set-end_image", "li:nth-child(2) .lt-placed")


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageProgram]:
    program = PageProgram(tmp_path, "--model", str(request.getfixturevalue(request.param)))
    yield program
    program.end()


@pytest.mark.slow
@pytest.mark.parametrize("program", ["tiny_helios_distilled"], indirect=True)
def test_a_video_of_helios_from_the_choice_of_the_model_to_its_frames(
    browser: Any, program: PageProgram, photo: Path
) -> None:
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    failed: list[str] = []
    page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(program.wait_until_up())
    open_folds(page)

    def shown(*selectors: str) -> list[str]:
        return [one for one in selectors if page.locator(one).is_visible()]

    page.wait_for_selector("#set-mode[data-ignored]", state="attached")
    wait_until(lambda: not shown(*LACKING))
    for title, words in (("FramePack F1", "European Union"), ("Helios Base", "Apache License 2.0")):
        choose_model(page, title)
        page.locator("#model-note").filter(has_text=words).wait_for()
    wait_until(lambda: shown(*LACKING) == ["#set-step_cache"])
    caches = page.locator("#options-step_cache").inner_text().split("\n")
    assert [one for one in caches if one] == ["Off", "FirstBlockCache", "TaylorSeer", "EasyCache"]

    choose_model(page, "Longtake demo model")
    wait_until(lambda: shown(*LACKING) == [*LACKING])
    page.set_input_files("#set-end_image input[type=file]", str(photo))
    page.wait_for_selector("#set-end_image img")
    choose_model(page, "distilled")
    page.locator("#end-note").filter(has_text="distilled takes no pictures besides the first").wait_for()
    start(page, photo, seconds=2.75, steps=2, resolution=64)
    notice(page, "End Picture is given; expected none for model distilled.")
    page.get_by_label("Remove End Picture").click()
    model_chosen(page, "distilled")
    page.wait_for_selector("#set-end_image[data-ignored]", state="attached")
    assert not shown(*LACKING)

    page.get_by_role("button", name="Start Generation").click()
    finished = status(page, state="finished", frames=66)
    page.locator(".lt-live .lt-details > summary").click()
    page.locator(".lt-live .lt-details").get_by_text("24 fps").wait_for()
    page.wait_for_selector('.lt-stage[data-url$="?v=66"]')
    assert page.evaluate(VIDEO)["duration"] == pytest.approx(66 / 24, abs=0.02)
    page.evaluate("document.querySelectorAll('.lt-stage video').forEach((one) => one.pause())")
    page.get_by_role("button", name="Play", exact=True).focus()
    for key in ("Home", "."):
        page.keyboard.press(key)
    assert page.evaluate(VIDEO)["at"] == pytest.approx(1 / 24, abs=0.001)
    video = program.outputs / finished.get_attribute("data-job") / "video.mp4"
    assert len(imageio.imread(video, plugin="pyav")) == 66
    assert imageio.immeta(video, plugin="pyav")["fps"] == 24
    page.close()
    assert [address.rpartition("/api/")[2] for address in failed] == ["form_start"]  # which was refused

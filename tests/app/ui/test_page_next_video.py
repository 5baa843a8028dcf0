"""Tests in Chromium of what acts on the next video, and of the videos that lead on from one."""

from pathlib import Path
from typing import Any

from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.provenance.recipe import Recipe
from tests.app.ui.test_page_restore import drop
from tests.support.clips import scene
from tests.support.pages import FIRST, Stand, needs_chromium, notice, start, status

pytestmark = needs_chromium


def test_one_button_is_red_at_a_time(page: Any, stand: Stand, photo: Path) -> None:
    def red_buttons() -> list[str]:
        page.mouse.move(700, 20)  # where it is over no button
        return page.evaluate(
            """() => {
                const red = getComputedStyle(document.querySelector('#red')).color;
                return [...document.querySelectorAll('button, a')].filter((button) => button.checkVisibility()
                    && getComputedStyle(button).backgroundColor === red)
                    .map((button) => button.innerText.split('\\n')[0]);
            }"""
        )

    page.wait_for_selector("html[data-ready]")
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<i id=red style=\"color: var(--slider-color)\"></i>')"
    )
    assert red_buttons() == []
    start(page, photo, seconds=2.4)
    stand.engine.go(FIRST)
    status(page, state="running", frames=33)
    assert red_buttons() == ["Start Generation (number 2)"]
    page.get_by_role("button", name="Pause Generation").click()
    status(page, state="paused")
    assert red_buttons() == ["Resume"]


def test_a_dropped_video_of_longtake_gives_its_settings_or_is_continued(page: Any, tmp_path: Path) -> None:
    video = GrowingVideo(tmp_path, width=96, height=64, mode="forward", crf=16)
    video.recipe = lambda: Recipe({"prompt": "a ring", "seed": 9})
    content = video.add_section(scene(30)).read_bytes()
    drop(page, content, "mine.mp4", "video/mp4")
    offered = notice(page, "Settings of mine.mp4 loaded, except for this:")  # it does not name its model
    page.wait_for_function("document.querySelector('[name=prompt]').value === 'a ring'")
    assert page.locator("[name=extras]").input_value() == ""
    offered.get_by_role("button", name="Continue the video instead").click()
    page.locator("#acting").get_by_text("Video to Continue").wait_for()
    page.wait_for_selector("#set-image img")
    assert page.locator("[name=prompt]").input_value() == "a ring"

"""Tests in Chromium of what acts on the next video, and of the videos that lead on from one."""

import json
from pathlib import Path
from typing import Any

from diffusers_helper.output.video import GrowingVideo
from diffusers_helper.provenance.recipe import Recipe
from tests.app.ui.test_page_restore import drop
from tests.support.clips import scene
from tests.support.jobs import wait_until
from tests.support.pages import FIRST, Stand, needs_chromium, notice, start, status

pytestmark = needs_chromium


def choose_picture(page: Any, photo: Path) -> None:
    """Choose a picture for the last section of the form's video, and close the strip."""
    page.wait_for_selector("html[data-ready]")
    page.set_input_files("#set-image input[type=file]", str(photo))
    page.get_by_label("Prompt", exact=True).fill("a ball")
    page.get_by_text("Say what happens when").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a picture for 3.6").click()
    chooser.value.set_files(photo)
    chip(page, "1 picture at 3.6 s").wait_for()
    page.get_by_text("Say what happens when").click()


def chip(page: Any, text: str) -> Any:
    return page.locator("#acting").get_by_role("button", name=f"Leave out: {text}")


def gone(page: Any) -> bool:
    page.wait_for_function("document.querySelector('#acting').childElementCount === 0")
    return page.locator("[name=pictures]").input_value() == ""


def test_a_picture_at_a_time_is_left_out_by_its_button_by_a_reset_and_by_other_settings(
    page: Any, stand: Stand, photo: Path
) -> None:
    choose_picture(page, photo)
    page.get_by_role("button", name="Reset to defaults").click()
    assert gone(page)
    choose_picture(page, photo)
    drop(page, json.dumps({"prompt": "a ring", "seed": 9}).encode(), "request.json", "application/json")
    page.wait_for_function("document.querySelector('[name=prompt]').value === 'a ring'")
    assert gone(page)
    choose_picture(page, photo)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    chip(page, "1 picture at 3.6 s").click()
    assert gone(page)
    assert page.evaluate("document.activeElement.id") == "start"
    page.locator("#start").click()
    request = stand.service.job(status(page, state="running").get_attribute("data-job")).request
    assert request.pictures == ""


def test_what_one_makes_is_in_sight_above_the_folds(page: Any, stand: Stand, photo: Path) -> None:
    drop(page, json.dumps({"prompt": "a ring", "loop": "on"}).encode(), "request.json", "application/json")
    page.wait_for_function("document.querySelector('[name=prompt]').value === 'a ring'")
    makes = page.get_by_label("Makes")
    assert makes.input_value() == "loop"
    page.set_input_files("#file-image", str(photo))
    makes.select_option("A video")
    makes.select_option("A loop")
    assert (makes.input_value(), page.locator("[name=loop]").input_value()) == ("loop", "on")
    makes.select_option("One picture")
    page.locator('#start[data-many="makes a picture"]').wait_for()
    assert page.get_by_label("number input for Change the Picture").input_value() == "9"
    assert not page.locator("#set-seconds").is_visible()
    page.locator("#start").click()
    request = stand.service.job(status(page, state="running").get_attribute("data-job")).request
    assert (request.loop, request.one_frame) == ("off", 9)


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


def test_another_start_picture_ends_the_continuation_of_a_video(
    page: Any, photo: Path, tmp_path: Path
) -> None:
    video = GrowingVideo(tmp_path, width=96, height=64, mode="forward", crf=16)
    content = video.add_section(scene(30)).read_bytes()
    carried = page.locator("#acting").get_by_text("Video to Continue: holiday.mp4.")
    for name, act in {
        "remove": lambda: page.locator("#set-image [data-from='']").click(),
        "choose": lambda: page.set_input_files("#set-image input[type=file]", str(photo)),
    }.items():
        drop(page, content, "holiday.mp4", "video/mp4")
        carried.wait_for()
        page.wait_for_selector("#set-image img")
        act()
        carried.wait_for(state="detached")
        assert page.locator("[name=extras]").input_value() == "", name


def test_a_finished_video_is_continued_after_its_end(page: Any, stand: Stand, photo: Path) -> None:
    stand.engine.go(10_000)
    start(page, photo, "a ball", seconds=2.4)
    first = status(page, state="finished").get_attribute("data-job")
    page.get_by_role("button", name="Continue after its end").click()
    notice(page, "The new video continues this one")
    assert page.evaluate("document.activeElement.name") == "prompt"
    assert page.get_by_role("radio", name="Forward · F1").is_checked()
    page.locator("#start").click()
    wait_until(lambda: len(stand.service.jobs()) == 2)
    (job,) = (job for job in stand.service.jobs() if job.id != first)
    assert (job.request.mode, job.request.prompt, job.request.extend) == ("forward", "a ball", "after")
    kept = stand.service.job(first).video
    assert Path(job.request.video).read_bytes() == kept.read_bytes()


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

"""Tests in Chromium of the form's controls that differ from Gradio's: crop, order, length, emptied fields."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.jobs.job import size_of
from tests.support.pages import Stand, needs_chromium, start, status

pytestmark = needs_chromium


def is_stored(page: Any, text: str) -> None:
    """Wait until the browser keeps a setting that contains this text."""
    page.wait_for_function("(text) => (localStorage.getItem('longtake.form') || '').includes(text)", arg=text)


# Returns the height and the upper edge of the picture on the stage, as shares of the video's height.
PLACED = """() => {
    const [picture, video] = ['.lt-poster', '.lt-fit'].map((part) =>
        document.querySelector(part).getBoundingClientRect());
    return [picture.height / video.height, (picture.top - video.top) / video.height];
}"""


def test_a_landscape_photo_becomes_an_upright_video_of_the_part_that_is_dragged_and_zoomed(
    page: Any, stand: Stand, photo: Path
) -> None:
    page.set_input_files("#file-image", str(photo))
    hole = page.get_by_role("slider", name="Picture: the part that the video shows")
    hole.wait_for()
    page.get_by_label("Video Shape").select_option("9:16")
    page.locator('#set-image label[data-hint="Video: 96 × 176"]').wait_for()
    page.wait_for_selector('.lt-crop[data-moves="across"]')
    hole.focus()
    for _ in range(7):  # 1.1 to the power of 8 is 2.14
        page.keyboard.press("+")
    is_stored(page, '"zoom":1.9')
    hole.hover()
    page.mouse.wheel(0, -100)
    is_stored(page, '"zoom":2.1')
    page.wait_for_selector('.lt-crop[data-moves="across down"]')
    box = hole.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 300, y + 300, steps=3)
    page.mouse.up()
    is_stored(page, '"crop_y":1')
    page.keyboard.press("ArrowRight")
    is_stored(page, '"crop":0.02')
    box = hole.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    screen = page.context.new_cdp_session(page)
    for kind, apart in ("touchStart", 20), ("touchMove", 30), ("touchEnd", 0):
        fingers = [{"x": x + way * apart, "y": y, "id": way + 1} for way in (-1, 1) if apart]
        screen.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    is_stored(page, '"zoom":3.')
    is_stored(page, '"crop":0.02')
    remove = page.get_by_role("button", name="Remove Picture").bounding_box()
    picture = page.locator("#set-image .lt-well").bounding_box()
    assert remove["y"] >= picture["y"] + picture["height"]  # it covers nothing of the picture
    page.reload()
    page.wait_for_selector('.lt-crop[data-moves="across down"]')
    start(page, None)
    job = stand.service.job(status(page, state="running").get_attribute("data-job"))
    request = job.request
    assert (request.picture_shape, request.crop, request.crop_y) == ("9:16", 0.02, 1)
    assert request.zoom == pytest.approx(1.5 * 2.14, abs=0.05)
    # Until there is a frame, the stage shows the same part of the picture.
    assert page.evaluate(PLACED) == pytest.approx([request.zoom, 1 - request.zoom], abs=0.02)
    assert size_of(job) == (96, 176)
    page.get_by_role("button", name="Reset to defaults").click()
    page.wait_for_function("document.querySelector('[name=zoom]').value === '1'")
    page.get_by_role("button", name="Undo").click()
    is_stored(page, '"picture_shape":"9:16"')
    assert page.get_by_label("number input for Zoom").input_value() == f"{request.zoom:g}"


def test_an_end_picture_is_added_moved_kept_and_given_to_the_job(
    page: Any, stand: Stand, photo: Path, tmp_path: Path
) -> None:
    tall = tmp_path / "tall.png"
    Image.linear_gradient("L").resize((240, 640)).save(tall)
    end = page.locator("#set-end_image")
    page.set_input_files("#file-image", str(photo))
    end.locator("input[type=file]").set_input_files(str(tall))
    hole = page.get_by_role("slider", name="End Picture: the part that the video shows")
    hole.wait_for()
    # The video has the shape of the start picture.
    end.locator('.lt-crop[data-moves="down"][data-crop="0 35.417 100 29.167"]').wait_for()
    hole.focus()
    page.keyboard.press("Home")
    is_stored(page, '"end_crop":0')
    page.locator("input[name=mode][value=forward]").check(force=True)
    page.get_by_text("Forward order was not trained for an end picture").wait_for()
    page.get_by_role("button", name="Make the end first").click()
    is_stored(page, '"inverted"')
    page.reload()
    end.locator('.lt-crop[data-crop="0 0 100 29.167"]').wait_for()
    start(page, None)
    request = stand.service.job(status(page, state="running").get_attribute("data-job")).request
    assert (request.mode, request.crop, request.end_crop) == ("inverted", 0.5, 0.0)
    with Image.open(request.end_image) as picture, Image.open(tall) as given:
        assert picture.tobytes() == given.convert("RGB").tobytes()
    page.get_by_role("button", name="Remove End Picture").click()
    end.locator("img").wait_for(state="detached")
    assert page.evaluate("document.activeElement.closest('.lt-picture').id") == "set-end_image"


def test_order_length_and_emptied_fields_obey_the_keyboard(page: Any, stand: Stand) -> None:
    page.wait_for_selector("html[data-ready]")
    first, last = page.get_by_role("radio").all()
    first.focus()
    page.keyboard.press("ArrowRight")
    is_stored(page, '"forward"')
    assert last.is_checked()
    assert not first.is_checked()
    field = page.get_by_label("number input for Total Video Length")
    slider = page.get_by_label("range slider for Total Video Length")
    assert slider.count() == 1
    box = slider.bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + box["height"] / 2)
    assert float(field.input_value()) == pytest.approx(10.5, abs=0.5)
    field.fill("19.9")
    page.get_by_text("19.9 s becomes ").wait_for()
    assert slider.get_attribute("aria-valuetext") == "19.9 seconds of video"
    slider.focus()
    for key, value in ("ArrowRight", "20"), ("ArrowRight", "21"), ("ArrowLeft", "20"), ("PageDown", "19"):
        page.keyboard.press(key)
        assert field.input_value() == value
    is_stored(page, '"seconds":19')
    field.fill("")
    field.press("Tab")
    page.get_by_role("status").get_by_text("A number is needed here, so 19 stays.").wait_for()
    assert field.input_value() == "19"
    field.fill("500")
    page.get_by_text("A number is needed here").wait_for(state="detached")
    field.press("Tab")
    page.get_by_text("500 is not possible, so it was changed to 120.").wait_for()
    field.fill("30")
    field.fill("")
    field.press("Control+Enter")
    page.get_by_text("A number is needed here, so 120 stays.").wait_for()
    assert stand.service.jobs() == []
    page.get_by_label("Prompt", exact=True).focus()
    page.keyboard.insert_text("a" * 4001)
    page.get_by_text("At most 4000 letters fit in here.").wait_for()

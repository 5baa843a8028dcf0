"""Tests in Chromium of pictures of any kind: button, drop and paste, with a preview that a reload keeps."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.heic import heic
from tests.support.pages import Stand, needs_chromium, status

pytestmark = needs_chromium
WIDTH = "document.querySelector('#set-image img')?.naturalWidth"
# Drops a file on the field of a picture, or on the stage, which stands for the start picture.
DROP = """([bytes, name, field]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name));
    const target = document.querySelector(field);
    target.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""
COLOUR, SIZE = (200, 60, 30), (64, 48)


def encoded(kind: str, size: tuple[int, int] = SIZE) -> bytes:
    image = Image.new("RGB", size, COLOUR)
    if kind == "HEIC":
        return heic([image])
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


def wait_for_picture(page: Any, width: int) -> None:
    page.wait_for_function(f"{WIDTH} === {width}")
    page.wait_for_selector('#set-image label[data-hint^="Video: "]')


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("100 % of #1.jfif", "JPEG"), (".photo", "PNG"), ("really-heic.jpg", "HEIC"),
    ],
)  # fmt: skip
def test_a_picture_of_any_name_has_a_preview_that_a_reload_keeps_and_becomes_the_video(
    page: Any, stand: Stand, name: str, kind: str
) -> None:
    page.wait_for_selector("html[data-ready]")
    page.evaluate(DROP, [list(encoded(kind)), name, ".lt-stage"])
    wait_for_picture(page, 64)
    page.wait_for_function("localStorage['longtake.form']?.includes('\"image\":{')")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    wait_for_picture(page, 64)
    assert page.locator("#set-image.lt-unseen").count() == 0
    page.locator("#start").click()
    job = status(page, state="running").get_attribute("data-job")
    with Image.open(stand.outputs / job / "input.png") as picture:
        assert picture.size == SIZE
        assert picture.getpixel((9, 9)) == pytest.approx(COLOUR, abs=3)


def test_a_heic_is_chosen_by_button_and_for_a_later_picture(page: Any, tmp_path: Path) -> None:
    page.wait_for_selector("html[data-ready]")
    (tmp_path / "IMG_0001.HEIC").write_bytes(encoded("HEIC"))
    page.set_input_files("#file-image", str(tmp_path / "IMG_0001.HEIC"))
    wait_for_picture(page, 64)
    page.evaluate(DROP, [list(encoded("HEIC", (80, 64))), "IMG_0002.HEIC", "#set-end_image"])
    page.wait_for_function("document.querySelector('#set-end_image img')?.naturalWidth === 80")
    assert page.evaluate(WIDTH) == 64

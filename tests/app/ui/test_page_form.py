"""Tests of the left side of the page in Chromium, which helps a user to ask for a video."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.pages import (
    choose_model,
    needs_chromium,
)

pytestmark = needs_chromium
READY = "document.querySelector('html[data-ready]')"
# Returns the edges of the crop and of the picture as drawn, in pixels of the window.
CROP = """() => {
    const image = document.querySelector('#set-image img');
    const box = image.getBoundingClientRect();
    const scale = Math.min(box.width / image.naturalWidth, box.height / image.naturalHeight);
    const [w, h] = [image.naturalWidth * scale, image.naturalHeight * scale];
    const x = box.left + (box.width - w) / 2, y = box.top + (box.height - h) / 2;
    const hole = document.querySelector('.lt-crop i').getBoundingClientRect();
    return [(hole.left - x) / w, (hole.top - y) / h, hole.width / w, hole.height / h];
}"""


def ready(page: Any) -> None:
    """Wait until the form's script has computed the result of the settings."""
    page.wait_for_function(READY)


def size(page: Any, text: str) -> None:
    page.wait_for_selector(f'#set-image label[data-hint="{text}"]')


def test_the_crop_lies_on_the_picture_and_follows_the_model(page: Any, photo: Path, tmp_path: Path) -> None:
    ready(page)
    page.set_input_files("input[type=file]", str(photo))
    size(page, "Video: 144 × 112")
    page.wait_for_selector(".lt-crop:not([hidden])")
    aspect = (144 / 112) / (320 / 240)
    assert page.evaluate(CROP) == pytest.approx([(1 - aspect) / 2, 0, aspect, 1], abs=0.02)
    choose_model(page, "FramePack F1")
    size(page, "Video: 704 × 544")
    page.wait_for_selector('#fold-look > summary[data-state="new seed · 25 steps · guidance 10"]')
    turned, upright = tmp_path / "phone.jpg", Image.new("RGB", (400, 200), "red")
    exif = upright.getexif()
    exif[0x0112] = 6
    upright.save(turned, exif=exif)
    page.set_input_files("input[type=file]", str(turned))
    size(page, "Video: 448 × 864")
    page.wait_for_selector(".lt-crop:not([hidden])")
    page.wait_for_function(f"({CROP})()[2] > 0.9")
    assert page.evaluate(CROP) == pytest.approx([0, 0.018, 1, 0.964], abs=0.02)

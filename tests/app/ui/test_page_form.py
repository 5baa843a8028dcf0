"""Tests of the left side of the page in Chromium, which helps a user to ask for a video."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from diffusers_helper.conditions.picture_file import load_picture
from diffusers_helper.errors import InputError
from tests.support.pages import (
    Stand,
    choose_model,
    needs_chromium,
    no_notice,
    notice,
    start,
    status,
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
PASTE = """async (bytes) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], 'pasted.png', { type: 'image/png' }));
    document.querySelector('#set-prompt textarea').dispatchEvent(
        new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true, cancelable: true }));
}"""


def ready(page: Any) -> None:
    """Wait until the form's script has computed the result of the settings."""
    page.wait_for_function(READY)


def size(page: Any, text: str) -> None:
    page.wait_for_selector(f'#set-image label[data-hint="{text}"]')


def prompt_box(page: Any) -> Any:
    return page.get_by_label("Prompt", exact=True)


def kept(page: Any, text: str) -> None:
    """Wait until the browser keeps a setting that contains this text."""
    page.wait_for_function("(text) => (localStorage.getItem('longtake.form') || '').includes(text)", arg=text)


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
    kept(page, '"resolution":640')
    page.get_by_text("Use it from a program").click()
    code = page.locator("#lt-program pre code").inner_text()
    assert f'Client("{page.url}")' in code
    assert 'image=handle_file("photo.png"),' in code
    assert 'model="framepack-f1",' in code
    assert "steps" not in code  # it is the endpoint's default
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the program").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == code
    turned, upright = tmp_path / "phone.jpg", Image.new("RGB", (400, 200), "red")
    exif = upright.getexif()
    exif[0x0112] = 6
    upright.save(turned, exif=exif)
    page.set_input_files("input[type=file]", str(turned))
    size(page, "Video: 448 × 864")
    page.wait_for_selector(".lt-crop:not([hidden])")
    page.wait_for_function(f"({CROP})()[2] > 0.9")
    assert page.evaluate(CROP) == pytest.approx([0, 0.018, 1, 0.964], abs=0.02)


def test_a_picture_that_cannot_be_used_says_so_before_the_start(
    page: Any, photo: Path, tmp_path: Path
) -> None:
    ready(page)
    text = tmp_path / "holiday.jpg"
    text.write_text("not a picture")
    page.evaluate(PASTE, list(photo.read_bytes()))
    size(page, "Video: 144 × 112")
    image = page.locator("#set-image img")
    good = image.get_attribute("src")
    page.set_input_files("#set-image input[type=file]", str(text))
    refusal = page.locator(".lt-refusal")
    refusal.wait_for()
    with pytest.raises(InputError) as refused:
        load_picture(text)
    # The page knows an upload by its name alone.
    assert refusal.inner_text() == str(refused.value).replace(f"{tmp_path}/", "")
    assert image.get_attribute("src") == good  # the good one stays
    wide = tmp_path / "wide.png"
    Image.new("RGB", (900, 60), "red").save(wide)
    page.set_input_files("#set-image input[type=file]", str(wide))
    page.wait_for_selector('.lt-crop[data-moves="across"]:not([hidden])')
    assert refusal.count() == 0


def test_a_bad_value_gives_one_sentence_and_takes_the_user_there(
    page: Any, stand: Stand, photo: Path
) -> None:
    start(page, photo, seed=2**53)
    assert "Seed is larger than a browser can hold exactly" in notice(page, "seed").inner_text()
    page.wait_for_function("document.activeElement.closest('#set-seed') !== null")
    assert page.locator("#set-seed input").get_attribute("aria-invalid") == "true"
    assert stand.service.jobs() == []
    page.get_by_label("Seed", exact=True).fill(str(2**53 - 1))
    no_notice(page)
    page.keyboard.press("Control+Enter")
    status(page, state="running")
    assert [job.request.seed for job in stand.service.jobs()] == [2**53 - 1]


def test_the_form_survives_a_reload(page: Any, stand: Stand, photo: Path) -> None:
    ready(page)
    start(page, photo, seconds=2.4, seed=7, steps=12)
    first = status(page, state="running").get_attribute("data-job")
    page.wait_for_function("localStorage['longtake.form']?.includes('\"image\":{')")
    page.get_by_text("Forward · F1").click()
    prompt_box(page).fill("the ball <i>grows</i>")
    kept(page, "<i>grows</i>")
    kept(page, '"forward"')
    page.reload()
    size(page, "Video: 144 × 112")
    page.wait_for_function("document.querySelector('#set-prompt textarea').value.includes('grows')")
    assert page.get_by_role("radio", name="Forward · F1").is_checked()
    page.wait_for_selector('#fold-look > summary[data-state="seed 7 · 12 steps · guidance 10"]')
    assert page.locator("#fold-look").get_attribute("open") is not None
    page.locator("#start").click()
    page.locator("#start", has_text="number 3").wait_for()
    again = stand.service.jobs()[0]
    assert again.id != first
    assert (again.request.seed, again.request.steps, again.request.mode) == (7, 12, "forward")
    inputs = [(stand.outputs / name / "input.png").read_bytes() for name in (first, again.id)]
    assert inputs[0] == inputs[1]
    page.get_by_role("button", name="Reset to defaults").click()
    page.wait_for_selector('#fold-look > summary[data-state="new seed · 4 steps · guidance 10"]')
    assert prompt_box(page).input_value() == "the ball <i>grows</i>"


def test_ctrl_enter_starts_earlier_prompts_come_back_and_a_double_click_is_one_press(
    page: Any, stand: Stand, photo: Path
) -> None:
    ready(page)
    page.set_input_files("input[type=file]", str(photo))
    size(page, "Video: 144 × 112")
    box, earlier = prompt_box(page), page.get_by_label("Earlier prompts")
    first, other = "a red ball", "the camera <b>pans</b> left"
    for text, number, place in ((first, 1, 2), (other, 2, 3), (first, 2, 4)):
        box.fill(text)
        box.press("Control+Enter")
        page.locator("#start", has_text=f"number {place}").wait_for()
        earlier.get_by_text(f"Earlier prompts ({number})").wait_for(state="attached")
    assert [job.request.prompt for job in stand.service.jobs()] == [first, other, first]
    options = ["Earlier prompts (2)", first, other, "Forget them"]
    assert earlier.locator("option").all_inner_texts() == options
    earlier.select_option(other)
    assert box.input_value() == other
    earlier.select_option("Forget them")
    earlier.wait_for(state="hidden")
    page.locator("#start").click(click_count=20)
    page.locator("#start", has_text="number 5").wait_for()
    assert len(stand.service.jobs()) == 4
    page.locator("#end").click(click_count=20)
    notice(page, "Ending")
    page.locator("#start", has_text="number 4").wait_for()
    assert [job.state for job in stand.service.jobs()].count("cancelled") == 1

"""Tests in Chromium of files that are dropped on the page, of presets, and of several videos at once."""

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.recipe import read_recipe
from tests.support.clips import read
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import PageProgram, Stand, needs_chromium, start, status

pytestmark = needs_chromium
DROP = """async (files) => {
    const transfer = new DataTransfer();
    const made = files.map(([bytes, name, type]) => new File([new Uint8Array(bytes)], name, { type }));
    for (const file of made) transfer.items.add(file);
    const target = document.querySelector('.lt-stage');
    for (const kind of ['dragenter', 'dragover', 'drop']) {
        const event = new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true });
        target.dispatchEvent(event);
        if (kind !== 'dragenter' && !event.defaultPrevented) throw new Error(`${kind} was left alone`);
    }
}"""


def drop(page: Any, content: bytes, name: str, kind: str) -> None:
    page.wait_for_selector("html[data-ready]")
    page.evaluate(DROP, [[list(content), name, kind]])


def test_the_form_starts_beside_damaged_storage(page: Any, stand: Stand, photo: Path) -> None:
    for number, text in enumerate(("[", '{"settings": null}', "7", '[{}, null, "folded"]'), 1):
        for key in ("folds", "prompts", "press", "form"):
            page.evaluate(f"(text) => {{ localStorage['longtake.{key}'] = text; }}", text)
            page.evaluate(f"(text) => {{ sessionStorage['longtake.{key}'] = text; }}", text)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        start(page, photo, seconds=1)
        wait_until(lambda number=number: len(stand.service.jobs()) == number)


@pytest.mark.slow
def test_a_video_dropped_on_the_page_becomes_the_same_video_again(
    browser: Any, tmp_path: Path, photo: Path
) -> None:
    program = PageProgram(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"))
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT * 1000)

    def finished(count: int) -> list[Path]:
        wait_until(lambda: len(list(program.outputs.glob("2*/video.mp4"))) == count)
        return sorted(program.outputs.glob("2*/video.mp4"))

    try:
        page.goto(program.wait_until_up())
        start(page, photo, seconds=2.4, steps=2, seed=11, resolution=64)
        job = status(page, state="finished", frames=73).get_attribute("data-job")
        (first,) = finished(1)
        page.goto(f"{program.url}/#history/{job}")
        page.wait_for_selector(f'.lt-past-open[data-job="{job}"]')
        opened = page.locator(".lt-past-open")
        opened.get_by_text("Make it longer").first.click()
        opened.get_by_text("Whole sections of 1.2 s are added. Adds time at the start;").wait_for()
        opened.get_by_label("Seconds to add").fill("1.2")
        opened.locator(".lt-panel-act").click()
        longer = next(path for path in finished(2) if path != first)
        assert len(read(longer)) == 109
        kept = [(video.parent / "sections" / "0001.safetensors").read_bytes() for video in (first, longer)]
        assert kept[0] == kept[1]  # the end of an inverted video stays

        page.evaluate("localStorage.clear()")
        page.goto(f"{program.url}/#create")
        page.reload()
        for video, words in ((first, "seed 11 · 2 steps"), (longer, "seed 11 · 2 steps")):
            drop(page, video.read_bytes(), "dropped.mp4", "video/mp4")
            page.wait_for_selector(f'#fold-look > summary[data-state^="{words}"]')
            page.wait_for_selector('#set-image label[data-hint^="Video: "]')
            if video == longer:
                page.get_by_text("The first section is made with the settings of the video").wait_for()
            old = set(program.outputs.glob("2*/video.mp4"))
            page.locator("#start").click()
            (again,) = set(finished(len(old) + 1)) - old
            assert again.read_bytes() == video.read_bytes()
            assert read_recipe(again).to_json() == read_recipe(video).to_json()
            assert JobFolder(again.parent).lineage.exists() == (video == longer)
    finally:
        page.close()
        program.end()

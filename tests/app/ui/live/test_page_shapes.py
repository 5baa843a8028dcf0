"""Tests of the page's look in Chromium, by boxes and pixels, in windows of several sizes."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffusers_helper.request import GenerationRequest
from tests.support.jobs import TIMEOUT, wait_until
from tests.support.pages import FIRST, Stand, needs_chromium, open_folds, staged_page, status, visit

pytestmark = needs_chromium
SHAPES = {"square": (64, 64), "upright": (48, 80), "wide": (112, 64)}
WINDOWS = {390: 844, 1440: 900, 2560: 1440}
COLUMNS = {390: 1, 1440: 3, 2560: 4}  # of the models, of which there are at least as many
BOXES = """() => Object.fromEntries(['.lt-film', '.lt-stage', '.lt-fit', '.lt-strip', '.lt-status',
    '.lt-records', '.lt-request', '.lt-actions'].map((part) => {
        const box = document.querySelector(part).getBoundingClientRect();
        const {left, top, right, bottom, width, height} = box;
        return [part, {left, top, right, bottom, width, height}];
    }))"""
CELLS = """() => [...document.querySelectorAll('.lt-live .lt-cell')]
    .map((one) => [one.offsetWidth, one.offsetHeight])"""
OVERFLOW = "() => document.documentElement.scrollWidth - window.innerWidth"
# What can be pressed, with its name and size, except for what flows with a sentence.
TARGETS = """() => [...document.querySelectorAll(
        'button, summary, select, input, [role=tab], a.lt-tile, a.lt-back')]
    .filter((one) => one.checkVisibility({visibilityProperty: true}) && one.type !== 'file'
        && !one.closest('[aria-hidden=true], p:not(.lt-answers)'))
    .map((one) => one.matches('input[type=checkbox], input[type=radio]') ? one.closest('label') : one)
    .map((one) => {
        const {width, height} = one.getBoundingClientRect();
        const name = one.ariaLabel || one.textContent.trim().slice(0, 40) || one.outerHTML.slice(0, 60);
        return [name, Math.round(width), Math.round(height)];
    })"""
# Sums the shifts of the layout from now on, without those of a change that is not drawn yet.
SHIFT = """async () => {
    for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
    window.shift = 0;
    new PerformanceObserver(list => list.getEntries().forEach(entry => { window.shift += entry.value; }))
        .observe({type: 'layout-shift', buffered: false});
}"""


@dataclass(frozen=True)
class Studio:
    """A page that stays open over the tests of this module, and the last video of each shape."""

    page: Any
    stand: Stand
    pictures: dict[str, Path]

    def submit(self, shape: str, **settings: Any) -> str:
        self.stand.engine.size = SHAPES[shape]
        values = {"image": str(self.pictures[shape]), "prompt": f"a {shape} video", "seconds": 1.0}
        values |= {"resolution": 80 if shape == "wide" else 64, **settings}  # as large as the engine's videos
        return self.stand.service.queue.add(GenerationRequest.from_dict(values)).id

    def resize(self, width: int) -> None:
        self.page.set_viewport_size({"width": width, "height": WINDOWS[width]})
        self.page.wait_for_function("width => window.innerWidth === width", arg=width)


@pytest.fixture(scope="module")
def studio(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("studio")
    pictures = {shape: folder / f"{shape}.png" for shape in SHAPES}
    for shape, (width, height) in SHAPES.items():
        Image.new("RGB", (10 * width, 10 * height), (120, 180, 220)).save(pictures[shape])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
        with staged_page(folder) as stand:
            context = browser.new_context(reduced_motion="reduce")
            context.set_default_timeout(TIMEOUT * 1000)
            page = context.new_page()
            visit(page, stand)
            yield Studio(page, stand, pictures)
            context.close()


def finished(studio: Studio, shape: str) -> None:
    """Make a video, and wait until the stage shows it."""
    job = studio.submit(shape)
    studio.stand.engine.go(FIRST + 1)
    wait_until(lambda: studio.stand.service.job(job).is_over)
    studio.page.goto("about:blank")
    visit(studio.page, studio.stand)
    status(studio.page, state="finished", job=job)
    studio.page.wait_for_selector(f'.lt-stage[data-url*="{job}/video.mp4"]')


def black_share(page: Any) -> float:
    """Return the share of black pixels in the card of the video; the staged videos and the page have none."""
    picture = Image.open(io.BytesIO(page.locator(".lt-live .lt-film").screenshot())).convert("RGB")
    return float((np.asarray(picture).max(axis=2) < 16).mean())


@pytest.mark.parametrize("shape", SHAPES)
def test_stage_and_tiles_have_the_shape_of_the_video(studio: Studio, shape: str) -> None:
    finished(studio, shape)
    page = studio.page
    ratio = SHAPES[shape][0] / SHAPES[shape][1]
    for width in WINDOWS:
        studio.resize(width)
        boxes = page.evaluate(BOXES)
        stage, fit, words = boxes[".lt-stage"], boxes[".lt-fit"], boxes[".lt-status"]
        assert stage["width"] / stage["height"] == pytest.approx(ratio, rel=0.02)
        assert abs(fit["width"] - stage["width"]) <= 2
        assert abs(fit["height"] - stage["height"]) <= 2
        assert all(wide / high == pytest.approx(ratio, rel=0.04) for wide, high in page.evaluate(CELLS))
        assert black_share(page) < 0.01
        assert page.evaluate(OVERFLOW) <= 0
        is_beside = words["left"] >= stage["right"] and words["top"] < stage["bottom"]
        assert is_beside == (shape != "wide" and width > 390)
        assert is_beside or words["top"] >= boxes[".lt-strip"]["bottom"]
        assert boxes[".lt-strip"]["top"] >= stage["bottom"]
        assert boxes[".lt-records"]["top"] >= boxes[".lt-film"]["bottom"]
        if width == 390:
            assert boxes[".lt-request"]["bottom"] <= boxes[".lt-records"]["top"]
        else:  # the sections and what one does next are in sight
            assert boxes[".lt-strip"]["bottom"] <= WINDOWS[width]
            assert page.locator(".lt-live .lt-download").bounding_box()["y"] < WINDOWS[width]


def test_everything_can_be_hit_by_a_finger(studio: Studio) -> None:
    if not studio.stand.service.finished_jobs(1):
        finished(studio, "square")
    page = studio.page
    studio.resize(390)
    page.set_input_files("input[type=file]", str(studio.pictures["wide"]))
    page.wait_for_selector("#set-image img")
    open_folds(page)
    paused = studio.submit("square")
    studio.stand.service.queue.pause(paused)
    small: list[str] = []
    for tab in (
        "create",
        "queue",
        "history",
        f"history/{studio.stand.service.finished_jobs(1)[0].id}",
        "models",
    ):
        page.evaluate("(tab) => { window.location.hash = tab; }", tab)
        ready = {"queue": ".lt-row", "history": ".lt-video-card", "models": ".lt-models[data-state=known]"}
        page.wait_for_selector(ready.get(tab, ".lt-past-open .lt-download" if "/" in tab else ".lt-film"))
        targets = page.evaluate(TARGETS)
        assert len(targets) > 8
        small += [f"{tab}: {name} {w} x {h}" for name, w, h in targets if w < 44 or h < 44]
        for width in (320, 390):  # 320 is a desktop's window at a zoom of 400 %
            page.set_viewport_size({"width": width, "height": WINDOWS[390]})
            page.wait_for_function(f"() => ({OVERFLOW})() <= 0")
    studio.stand.service.queue.cancel(paused)
    assert not small, "\n".join(small)


def test_nothing_moves_while_buttons_come(studio: Studio) -> None:
    page = studio.page
    studio.resize(1440)
    page.evaluate("() => { window.location.hash = 'create'; }")
    finished(studio, "upright")
    job = studio.submit("square", seconds=2.4)
    status(page, state="running", job=job)
    page.evaluate(SHIFT)
    places = page.evaluate(BOXES)
    studio.stand.engine.go(FIRST)
    status(page, state="running", frames=33)
    page.locator(".lt-live .lt-download").get_by_text("Download the video so far").wait_for()
    after = page.evaluate(BOXES)
    assert {part: (box["left"], box["top"]) for part, box in after.items()} == {
        part: (box["left"], box["top"]) for part, box in places.items()
    }
    assert page.evaluate("window.shift") < 0.01
    studio.stand.engine.go(1000)
    status(page, state="finished")


HEADING = "document.querySelector('.lt-model-card h3').getBoundingClientRect().height"


def test_models_stand_in_columns_and_large_windows_have_large_text(studio: Studio) -> None:
    page = studio.page
    page.evaluate("() => { window.location.hash = 'models'; }")
    page.wait_for_selector(".lt-models[data-state=known]")
    heights = {}
    for width in WINDOWS:
        studio.resize(width)
        # The window's new width may reach the cards a moment later.
        page.wait_for_function(
            "count => new Set([...document.querySelectorAll('.lt-model-card')]"
            ".map((card) => Math.round(card.getBoundingClientRect().x))).size === count",
            arg=COLUMNS[width],
        )
        if width == 2560:  # the larger text may be laid out a moment later
            page.wait_for_function(f"{HEADING} > {1.1 * heights[1440]}")
        heights[width] = page.evaluate(HEADING)
        page.wait_for_function(f"() => ({OVERFLOW})() <= 0")
    assert heights[2560] == pytest.approx(1.2 * heights[1440], rel=0.05)
    colours = page.locator(".lt-model-card .lt-model-actions button").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert colours
    assert "rgb(200, 55, 27)" not in colours  # the accent belongs to the answer that starts the download

"""Tests of the right side of the page in Chromium, over an engine that goes on when the test says so."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffusers_helper.families.packing import MODES, Mode, plan_sections
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import TIMEOUT
from tests.support.pages import FIRST, FURTHER, Stand, needs_chromium, status, visit

pytestmark = needs_chromium
TOP = "document.querySelector('.lt-stage video.lt-top')"
# Notes the times of both videos the instant one is put over the other, before anything else can run.
WATCH_SWAPS = """() => {
    window.swaps = [];
    const videos = [...document.querySelectorAll('.lt-stage video')];
    let top = document.querySelector('video.lt-top');
    new MutationObserver(() => {
        const now = document.querySelector('video.lt-top');
        if (now && top && now !== top) {
            window.swaps.push({
                old: top.currentTime, now: now.currentTime, length: now.duration, before: top.duration,
                ready: now.readyState, paused: now.paused, volume: now.volume, rate: now.playbackRate,
            });
        }
        top = now || top;
    }).observe(videos[0].parentElement, {subtree: true, attributes: true, attributeFilter: ['class']});
}"""


def submit(stand: Stand, photo: Path, **settings: Any) -> str:
    """Submit a job that any open page shows, and return its id."""
    return stand.service.queue.add(
        GenerationRequest(image=str(photo), **{"prompt": "the red ball moves right", **settings})
    ).id


def shows(page: Any, frames: int) -> None:
    """Wait until the version with so many frames is the one that is watched."""
    page.wait_for_selector(f'.lt-stage[data-url$="?v={frames}"]')


def totals(seconds: float, mode: Mode) -> list[int]:
    return [section.total_frames for section in plan_sections(seconds, mode=mode)]


class Screencast:
    """Every picture that the browser composes, as (T, H, W) grey values of the middle of the video."""

    def __init__(self, page: Any) -> None:
        self._page, self._client = page, page.context.new_cdp_session(page)
        self._box = page.locator(".lt-stage").bounding_box()
        self.frames: list[np.ndarray] = []
        self._client.on("Page.screencastFrame", self._take)
        self._client.send("Page.startScreencast", {"format": "jpeg", "quality": 60, "everyNthFrame": 1})

    def _take(self, frame: dict[str, Any]) -> None:
        self._client.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})
        picture = Image.open(io.BytesIO(base64.b64decode(frame["data"]))).convert("L")
        scale = picture.width / frame["metadata"]["deviceWidth"]
        x, y, width, height = (self._box[key] * scale for key in ("x", "y", "width", "height"))
        middle = (x + width * 0.3, y + height * 0.3, x + width * 0.6, y + height * 0.7)
        self.frames.append(np.asarray(picture.crop(tuple(map(round, middle)))))

    def see_more(self) -> None:
        """Wait for a few further pictures, as there are while a video plays."""
        wanted = len(self.frames) + 3
        while len(self.frames) < wanted:
            self._page.evaluate("() => new Promise(requestAnimationFrame)")

    def stop(self) -> None:
        self._client.send("Page.stopScreencast")


@pytest.mark.parametrize("mode", MODES)
def test_a_playing_video_grows_without_a_jump_or_a_black_frame(
    page: Any, stand: Stand, photo: Path, mode: Mode
) -> None:
    submit(stand, photo, mode=mode, seconds=3.6)
    status(page, state="running")
    first, *rest = totals(3.6, mode)
    stand.engine.go(FIRST)
    shows(page, first)
    page.evaluate(f"() => {{ {TOP}.volume = 0.5; {TOP}.playbackRate = 0.25; }}")
    page.evaluate(WATCH_SWAPS)
    cast = Screencast(page)
    for frames in rest:
        # Play slowly and far from the end, as the loop's own jump there would look like the swap's.
        page.evaluate(f"() => {{ {TOP}.currentTime = 0.2; }}")
        page.wait_for_function(f"!{TOP}.paused && !{TOP}.seeking && {TOP}.currentTime > 0.2")
        stand.engine.go(FURTHER)
        shows(page, frames)
        cast.see_more()
    cast.stop()
    swaps = page.evaluate("window.swaps")
    assert len(swaps) == len(rest)
    for swap in swaps:
        in_front = swap["length"] - swap["before"] if mode == "inverted" else 0.0
        # The video loops while the job runs, so that it may have gone on from its end to its beginning.
        moved = (swap["now"] - swap["old"] - in_front) % swap["length"]
        assert min(moved, swap["length"] - moved) <= 0.1
        assert swap["ready"] >= 2 or swap["now"] == 0
        assert (swap["volume"], swap["rate"]) == (0.5, 0.25)
    assert not page.evaluate(f"{TOP}.paused")
    page.evaluate(f"() => {{ {TOP}.playbackRate = 4; }}")
    page.wait_for_function(f"{TOP}.currentTime > 2 && !{TOP}.ended")
    page.wait_for_function(f"{TOP}.currentTime < 1 && !{TOP}.paused")  # it loops after a swap, too
    assert min(frame.mean() for frame in cast.frames) > 60


@pytest.mark.parametrize("mode", MODES)
def test_a_paused_video_stays_on_its_frame(page: Any, stand: Stand, photo: Path, mode: Mode) -> None:
    submit(stand, photo, mode=mode, seconds=3.6)
    first, *rest = totals(3.6, mode)
    stand.engine.go(FIRST)
    shows(page, first)
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_label("Position in the video").fill("0.5")
    page.wait_for_function(f"!{TOP}.seeking")
    page.get_by_role("button", name="Play").focus()
    stand.engine.go((FURTHER) * 2)
    shows(page, rest[-1])
    moved = (rest[-1] - first) / 30 if mode == "inverted" else 0.0
    assert page.evaluate(f"{TOP}.currentTime") == pytest.approx(0.5 + moved, abs=1 / 30)
    assert page.evaluate(f"{TOP}.paused")
    assert page.evaluate("document.activeElement.className") == "lt-play"
    page.keyboard.press("ArrowLeft")
    expected = max(0.0, 0.5 + moved - 1)
    assert page.evaluate(f"{TOP}.currentTime") == pytest.approx(expected, abs=1 / 30)
    page.keyboard.press("k")
    page.wait_for_function(f"!{TOP}.paused")


@pytest.fixture
def calm_page(browser: Any, stand: Stand) -> Iterator[Any]:
    """Open the page for a user who asked for less motion and allows notifications."""
    context = browser.new_context(reduced_motion="reduce", permissions=["notifications"])
    context.set_default_timeout(TIMEOUT * 1000)
    context.add_init_script(
        "window.notes = []; window.Notification = class { constructor(title, options) "
        "{ window.notes.push([title, options.body]); } static permission = 'granted'; };"
    )
    page = context.new_page()
    visit(page, stand)
    yield page
    context.close()


def test_nothing_moves_by_itself_for_those_who_ask_and_the_end_is_notified(
    calm_page: Any, stand: Stand, photo: Path
) -> None:
    submit(stand, photo, seconds=1)
    status(calm_page, state="running")
    notify = calm_page.get_by_role("button", name="Notify me when done")
    notify.click()
    calm_page.get_by_role("button", name="You will be notified", pressed=True).wait_for()
    stand.engine.go(FIRST)
    shows(calm_page, 37)
    assert calm_page.evaluate(f"{TOP}.paused")
    assert not calm_page.evaluate(f"{TOP}.loop")
    stand.engine.go(1)
    status(calm_page, state="finished")
    assert calm_page.evaluate("window.notes") == [
        ["Longtake: the video is finished", "the red ball moves right"]
    ]

"""Tests of the growing video in Chromium: it loads, knows its length and seeks to the exact frame."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffusers_helper.families.packing import MODES, Mode
from tests.support.clips import parts_of, writer
from tests.support.jobs import TIMEOUT
from tests.support.pages import needs_chromium

pytestmark = needs_chromium
FRAMES = 36 * 3 + 1

# A blob has the page's own origin, so that the script may read the canvas.
LOAD = """async (data) => {
    const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
    const video = document.createElement('video');
    video.muted = true;
    document.body.replaceChildren(video);
    const loaded = new Promise((resolve, reject) => {
        video.requestVideoFrameCallback(resolve);
        video.onerror = () => reject(new Error(video.error.message));
    });
    video.src = URL.createObjectURL(new Blob([bytes], {type: 'video/mp4'}));
    await loaded;
    window.video = video;
    return {width: video.videoWidth, height: video.videoHeight, duration: video.duration,
            seekable: video.seekable.end(0)};
}"""
COLOUR_AT = """async (seconds) => {
    if (seconds !== null) {
        // On a busy machine `seeked` comes before the frame is on the screen.
        const presented = new Promise(resolve => {
            const look = (_, facts) => {
                if (facts.mediaTime <= seconds && seconds < facts.mediaTime + 1 / 30) resolve();
                else video.requestVideoFrameCallback(look);
            };
            video.requestVideoFrameCallback(look);
            setTimeout(resolve, 30000);
        });
        video.currentTime = seconds;
        await presented;
    }
    const canvas = document.createElement('canvas');
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    const context = canvas.getContext('2d');
    context.drawImage(video, 0, 0);
    return Array.from(context.getImageData(48, 32, 1, 1).data).slice(0, 3);
}"""
PLAY = """async () => {
    const ended = new Promise(resolve => { video.onended = resolve; });
    video.currentTime = video.duration - 0.5;
    await video.play();
    await ended;
    return video.currentTime;
}"""


def colours() -> np.ndarray:
    """Return a plain colour per frame, (FRAMES, 3), far from its neighbours', strong hues among them."""
    k = np.arange(FRAMES)
    return np.stack([20 + 67 * k % 211, 230 - 41 * k % 197, 30 + 89 * k % 199], -1).astype(np.uint8)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    yield page
    page.close()


@pytest.mark.parametrize("mode", MODES)
def test_chromium_plays_every_version_and_seeks_to_the_frame(page: Any, tmp_path: Path, mode: Mode) -> None:
    expected = colours()
    clip = np.broadcast_to(expected[:, None, None, :], (FRAMES, 64, 96, 3))
    video = writer(tmp_path, mode)
    for final, pending in parts_of(clip, mode):
        version = video.add_section(final, pending)
        shown = expected[: video.frames] if mode == "forward" else expected[FRAMES - video.frames :]
        facts = page.evaluate(LOAD, base64.b64encode(version.read_bytes()).decode())
        assert (facts["width"], facts["height"]) == (96, 64)
        assert facts["duration"] == facts["seekable"] == pytest.approx(video.frames / 30, abs=1e-3)
        # Look before any seek, since a page shows the first frame of a video at rest.
        assert np.abs(np.array(page.evaluate(COLOUR_AT, None)) - shown[0].astype(int)).max() < 12
        last = video.frames - 1
        for frame in sorted({last, 0, last // 2, *range(35, last, 36), *range(36, last, 36)}, reverse=True):
            colour = page.evaluate(COLOUR_AT, (frame + 0.5) / 30)
            assert np.abs(np.array(colour) - shown[frame].astype(int)).max() < 12, frame
        assert page.evaluate(PLAY) == pytest.approx(video.frames / 30, abs=1e-3)

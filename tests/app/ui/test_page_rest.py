"""Tests that the page rests: without a change it draws nothing and posts nothing."""

from pathlib import Path
from typing import Any

from tests.support.jobs import TIMEOUT
from tests.support.pages import Stand, needs_chromium, start, status, visit

pytestmark = needs_chromium
# Counts the frames that scripts draw.
COUNT_FRAMES = """
window.frames_drawn = 0;
const draw = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (then) => draw((time) => { window.frames_drawn += 1; then(time); });
"""


def next_beat(page: Any) -> None:
    """Wait until the server has given another sign of life."""
    before = page.locator(".lt-view").get_attribute("data-beat")
    page.wait_for_function(  # by default, it would look at each frame, and draw them by that
        "before => document.querySelector('.lt-view').dataset.beat !== before", arg=before, polling=100
    )


def test_a_page_without_news_draws_nothing_and_posts_nothing(browser: Any, stand: Stand, photo: Path) -> None:
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    page.add_init_script(COUNT_FRAMES)
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)

    def is_at_rest() -> bool:
        posted.clear()
        page.evaluate("window.frames_drawn = 0")
        next_beat(page)
        return posted == [] and page.evaluate("window.frames_drawn") <= 2

    def comes_to_rest() -> bool:
        """Return whether nothing happens before two signs of life in a row, of the next few."""
        return any(is_at_rest() and is_at_rest() for _ in range(6))

    visit(page, stand)
    next_beat(page)
    assert comes_to_rest()
    start(page, photo, seconds=1)
    stand.engine.go(1000)
    status(page, state="finished")
    page.locator(".lt-stage[data-state='video']:not([data-playing='true'])").wait_for()
    assert comes_to_rest()
    page.close()

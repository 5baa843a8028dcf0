"""Tests in Chromium of what acts on the next video, and of the videos that lead on from one."""

from pathlib import Path
from typing import Any

from tests.support.pages import FIRST, Stand, needs_chromium, start, status

pytestmark = needs_chromium


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

"""Tests that each press is heard while the server is slow or away, and is carried out at most once."""

from pathlib import Path
from typing import Any

import pytest

from diffusers_helper.request import GenerationRequest
from tests.support.jobs import wait_until
from tests.support.pages import FIRST, Stand, needs_chromium, start, status
from tests.support.staged_engine import FAILING_PROMPT

pytestmark = [*needs_chromium, pytest.mark.usefixtures("lit_hub")]
# A press is the name of a button, the endpoint that it calls, and the place where it is found.
Press = tuple[str, str, str]
VIEW, ROW, CARD = ".lt-live", ".lt-row[data-state=queued]", ".lt-model-card[data-model=framepack-f1]"
WHILE_MADE: tuple[Press, ...] = (
    ("Pause Generation", "jobs_pause", f"create {VIEW}"),
    ("Stop after this section", "jobs_cancel", f"create {VIEW}"),
    ("Change the words", "jobs_change", f"create {VIEW}"),
    ("End Generation", "form_end", "create #form"),
    ("Reset to defaults", "form_reset", "create #form"),
    ("Pause everything", "jobs_hold", "queue .lt-queue"),
    ("Edit:", "history_settings", f"queue {ROW}"),
    ("Pause:", "jobs_pause", f"queue {ROW}"),
    ("Duplicate:", "jobs_duplicate", f"queue {ROW}"),
    ("Remove:", "jobs_remove", f"queue {ROW}"),
    ("Download it", "models_get", f"models {CARD}"),
)
WHILE_IT_WAITS: tuple[Press, ...] = (
    ("Keep take 2 and go on", "jobs_resume", f"create {VIEW}"),
    ("Three more", "jobs_takes", f"create {VIEW}"),
    ("Three takes of the next section", "jobs_takes", f"create {VIEW}"),
    ("Resume", "jobs_resume", f"create {VIEW}"),
)
AFTERWARDS: tuple[Press, ...] = (
    ("Another seed", "jobs_duplicate", f"create {VIEW}"),
    ("Make it longer", "jobs_branch", f"create {VIEW}"),
    ("Make this branch", "jobs_branch", f"create {VIEW}"),
    ("Favourite", "jobs_favourite", f"create {VIEW}"),
    ("☆", "jobs_favourite", "history .lt-video-card"),
)

# What opens the panel with a press.
OPENERS = {
    "Change the words": ".lt-steer", "Three takes of the next section": ".lt-steer",
    "Make it longer": ".lt-longer", "Make this branch": ".lt-change",
}  # fmt: skip
OPEN_FOLDS = """(one) => {
    const folds = [...document.querySelectorAll('details')].filter((fold) => fold.contains(one));
    for (const fold of folds) fold.open = true;
    one.closest('[popover]')?.showPopover();
}"""
# Notes what the line about the connection says, which the next update may end at any time.
LISTEN = """() => {
    const line = document.querySelector('.lt-lost');
    window.said = [];
    new MutationObserver(() => window.said.push(line.textContent)).observe(line, { childList: true });
}"""


@pytest.fixture
def screen() -> dict[str, Any]:
    """Return a phone, on which other controls cover a button sooner than in a wide window."""
    return {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def button(page: Any, press: Press) -> Any:
    """Return the button of a press, after opening the tab and the folds around it."""
    name, _, place = press
    tab, _, selector = place.partition(" ")
    page.evaluate("tab => { location.hash = tab; }", tab)
    box = page.locator(selector).last
    if name == "Download it":
        box.get_by_role("button", name="Download: ").click()
    if opener := OPENERS.get(name):
        box.locator(opener).click()
        box.locator(".lt-panel h3").wait_for()  # it is filled by an answer
        box = box.locator(".lt-panel")
    found = box.locator("button", has_text=name.rstrip(":")).last
    found.wait_for(state="attached")
    found.evaluate(OPEN_FOLDS)
    return found


def hear(page: Any, press: Press) -> None:
    """Press twice while the server keeps the call waiting, and then does not answer it."""
    held: list[Any] = []
    address = f"**/api/{press[1]}"
    pressed = button(page, press).element_handle()
    page.route(address, lambda route: held.append(route))
    page.evaluate("window.said = [document.querySelector('.lt-lost').textContent]")
    pressed.tap() if page.evaluate("navigator.maxTouchPoints") else pressed.click()
    pressed.evaluate("one => one.click()")
    page.wait_for_function(
        """([one, name]) => !one.isConnected || one.ariaBusy === 'true'
        || one.closest('li')?.querySelector('[aria-busy]')""",
        arg=[pressed, press[0]],
    )
    wait_until(lambda: (page.evaluate("0"), held)[1])
    held[0].abort("connectionrefused")
    page.wait_for_function("window.said.some((text) => text.startsWith('The server does not answer.'))")
    page.wait_for_function("one => !one.isConnected || one.ariaBusy !== 'true'", arg=pressed)
    page.unroute(address)
    assert len(held) == 1, press


def test_presses_are_heard_while_a_video_is_made(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, seconds=3.6)
    stand.engine.go(FIRST)
    status(page, state="running", frames=33)
    page.locator("#start").click()
    wait_until(lambda: len(stand.service.jobs()) == 2)
    page.evaluate(LISTEN)
    states = [job.state for job in stand.service.jobs()]
    for press in WHILE_MADE:
        hear(page, press)
    button(page, ("Edit:", "", f"queue {ROW}")).click()
    page.get_by_text("You are editing a video in the queue").wait_for()
    hear(page, ("Save Changes", "form_save", "create #form"))
    hear(page, ("Cancel editing", "form_restore", "create #form"))
    page.get_by_text("You are editing a video in the queue").wait_for()  # nothing is lost
    assert [job.state for job in stand.service.jobs()] == states
    assert not stand.service.queue.is_paused


def test_presses_are_heard_while_a_video_waits_with_its_takes(page: Any, stand: Stand, photo: Path) -> None:
    stand.engine.go(10_000)
    request = GenerationRequest(image=str(photo), prompt="a ball", seconds=3.6, mode="forward")
    job = stand.service.queue.add(request, waits=True)
    wait_until(lambda: stand.service.job(job.id).state == "paused")
    stand.service.steering.takes(job.id, 3, None)
    wait_until(lambda: [one.state for one in stand.service.jobs()] == ["paused"] * 4)
    page.get_by_text("3 of 3 takes ready").wait_for()
    page.evaluate(LISTEN)
    take = ("Take 2", "jobs_scene", f"create {VIEW}")
    hear(page, take)
    button(page, take).click()
    page.get_by_role("button", name="Keep take 2 and go on").wait_for()
    for press in WHILE_IT_WAITS:
        hear(page, press)
    assert [one.state for one in stand.service.jobs()] == ["paused"] * 4


def test_presses_are_heard_after_a_video_is_made(page: Any, stand: Stand, photo: Path) -> None:
    stand.engine.go(1000)
    start(page, photo, FAILING_PROMPT)
    status(page, state="failed")
    page.evaluate(LISTEN)
    hear(page, ("Resume", "jobs_resume", f"create {VIEW}"))
    start(page, None, seconds=2.4)
    status(page, state="finished")
    for press in AFTERWARDS:
        hear(page, press)
    assert [job.state for job in stand.service.jobs()] == ["finished", "failed"]
    # A late answer is waited for, and the press is carried out once.
    held: list[Any] = []
    page.route("**/api/jobs_duplicate", lambda route: held.append(route))
    again = button(page, AFTERWARDS[0])
    again.evaluate("one => { one.click(); one.click(); }")
    page.locator(".lt-lost").get_by_text("Still waiting for the server…").wait_for()
    again.evaluate("one => one.click()")
    held[0].continue_()
    page.get_by_text("is in the queue.").wait_for()
    page.wait_for_function("!document.querySelector('.lt-lost').textContent")
    assert (len(held), len(stand.service.jobs())) == (1, 3)

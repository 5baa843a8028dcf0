"""Tests of trouble around a page: dead servers, many tabs, hasty clicks, hostile texts, no mouse."""

import contextlib
import gc
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.jobs.service import JobService
from app.ui.live import subscribe
from diffusers_helper.setting import MAX_PROMPT_CHARACTERS
from tests.support.jobs import ROOT, TIMEOUT, wait_until
from tests.support.pages import (
    FIRST,
    FURTHER,
    Stand,
    free_port,
    needs_chromium,
    start,
    status,
    visit,
    write_photo,
)

pytestmark = needs_chromium
HOSTILE = (
    '<img src=x onerror="window.hit=1"></script><svg onload=window.hit=2>\u202e\u0000-abc {{hit}} ${hit} '
)
HOSTILE = HOSTILE.replace("\u0000", "") + "\U0001f9ff" * 5 + "\u0301" * 20 + " מִלָּה" + "w" * 300
# Returns what Tab reaches, in the order of the page, and whether the focus is visible there.
FOCUSED = """() => {
    const one = document.activeElement;
    if (!one || one === document.body) return null;
    window.walked = window.walked || new Map();
    if (!window.walked.has(one)) window.walked.set(one, window.walked.size);
    // Some draw the ring around what holds them.
    const holders = [one];
    while (holders.length < 4 && holders.at(-1).parentElement) holders.push(holders.at(-1).parentElement);
    const looks = () => holders.map(each => {
        const style = getComputedStyle(each);
        const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
        return [ring, style.outlineColor, style.boxShadow, style.borderColor, style.backgroundColor];
    }).join();
    const focused = looks();
    one.blur();
    const without = looks();
    one.focus({focusVisible: true});
    const box = one.getBoundingClientRect();
    const go = document.querySelector('.lt-go').getBoundingClientRect();
    const beside = box.right <= go.left || box.left >= go.right;
    return {
        // Of a field of several lines, the first one counts.
        covered: !one.closest('.lt-go') && !beside && box.top < go.bottom
            && box.top + Math.min(24, box.height) > go.top,
        number: window.walked.get(one), seen: focused !== without, left: box.left, right: box.right,
        name: one.getAttribute('aria-label') || one.labels?.[0]?.innerText || one.innerText || '',
        tag: one.tagName, html: one.outerHTML.slice(0, 160),
    };
}"""


class Program:
    """The staged page in a process that is started again and again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.url, self.outputs = f"http://127.0.0.1:{self.port}/", folder / "outputs"
        self.process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        command = [sys.executable, "-m", "tests.support.staged_program", str(self.folder), str(self.port)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "up\n"

    def go(self, events: int) -> None:
        self.process.stdin.write(f"{events}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self.process = None


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))
    program = Program(tmp_path)
    yield program
    program.kill()


def subscriptions(service: JobService) -> int:
    """Return how many watches over the service's jobs go on."""
    return sum(
        isinstance(watched, types.GeneratorType)
        and watched.gi_code is subscribe.watch.__code__
        and watched.gi_frame is not None
        and watched.gi_frame.f_locals.get("service") is service
        for watched in gc.get_objects()
    )


def test_a_killed_server_comes_back_and_the_page_with_it_and_the_press_meanwhile_is_sent_once(
    browser: Any, program: Program, photo: Path
) -> None:
    program.begin()
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT * 1000)
    page.goto(program.url)
    page.wait_for_selector(".lt-status", state="attached")
    start(page, photo, seconds=2.4)
    program.go(FIRST)
    job = status(page, state="running", frames=33).get_attribute("data-job")
    program.kill()
    page.locator(".lt-lost").get_by_text("the video continues once it runs again").wait_for()
    assert page.title() == "Connection lost · Longtake"
    stopped = page.locator(".lt-eta").inner_text()
    assert stopped.endswith("when it was last heard of")
    assert page.locator(".lt-status").get_attribute("data-job") == job
    page.get_by_role("button", name="End Generation").click()
    page.wait_for_selector("#end:not([aria-busy])")  # it can be pressed again
    assert page.locator(".lt-eta").inner_text() == stopped
    page.get_by_label("Prompt", exact=True).fill("typed while the server was away")
    page.locator("#start").click()
    assert page.locator("#start").get_attribute("aria-busy") == "true"
    page.locator("#notice").get_by_text("Your press is kept").wait_for()
    page.locator("#start").click()  # does nothing more
    program.begin()
    running = status(page, state="running", job=job, frames=33)
    page.get_by_text("Longtake was ended while it was making this video. It was resumed").first.wait_for()
    reported = running.inner_text()
    assert "Traceback" not in reported
    assert page.locator("a.lt-download").is_visible()
    page.wait_for_selector("#start[aria-busy='false']")
    program.go(FIRST + FURTHER + 1)
    status(page, state="finished", job=job, frames=73)
    made = [(job.request.prompt, job.state) for job in JobService(program.outputs).jobs()]
    assert made[1:] == [("the red ball moves right", "finished")]
    assert made[0][0] == "typed while the server was away"
    page.close()


def test_tabs_and_reloads_find_the_job_and_leave_nothing_behind(page: Any, stand: Stand, photo: Path) -> None:
    start(page, photo, seconds=2.4)
    stand.engine.go(FIRST)
    job = status(page, state="running", frames=33).get_attribute("data-job")
    second = page.context.new_page()
    visit(second, stand)
    for _ in range(5):
        page.reload(wait_until="domcontentloaded")
        status(page, state="running", frames=33, job=job)
    status(second, state="running", frames=33, job=job)
    wait_until(lambda: subscriptions(stand.service) == 1)  # one watch serves all pages
    stand.engine.go(1000)
    for tab in (page, second):
        status(tab, state="finished", job=job)
    second.reload()
    status(second, state="finished", frames=73, job=job)
    second.wait_for_selector('.lt-stage[data-url$="?v=73"]')
    assert second.evaluate("document.querySelector('.lt-stage video.lt-top').paused")
    second.close()
    page.goto("about:blank")
    wait_until(lambda: subscriptions(stand.service) == 0)


def test_hostile_texts_stay_texts_and_in_their_places(page: Any, stand: Stand, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    prompt = (HOSTILE * 20)[:MAX_PROMPT_CHARACTERS]
    name = "<img src=x onerror=window.hit=3>\u202e" + "n" * 120 + ".png"
    start(page, write_photo(tmp_path / name), prompt=prompt, seconds=1)
    stand.engine.go(1000)
    status(page, state="finished")
    page.reload()
    assert "<img src=x onerror=" in status(page, state="finished").inner_text()
    assert page.evaluate("window.hit") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_markup_that_got_in_would_not_run(browser: Any, stand: Stand) -> None:
    page = browser.new_page(bypass_csp=False)
    visit(page, stand)
    page.evaluate("""() => {
        const box = document.body.appendChild(document.createElement('div'));
        box.innerHTML = '<img src="data:," onerror="window.hit = 1">'
            + '<a href="javascript:window.hit = 2">x</a>';
        const script = document.createElement('script');
        script.textContent = 'window.hit = 3';
        box.append(script);
        const far = document.createElement('script');
        far.src = 'data:text/javascript,window.hit = 4';
        box.append(far);
        box.querySelector('a').click();
        window.refused = 0;
        return new Promise(done => { far.onerror = done; });
    }""")
    assert page.evaluate("window.hit") is None
    page.close()


def test_everything_is_reached_by_tab_and_seen(page: Any) -> None:
    controls = page.locator(
        "button:visible:not(:disabled), input:visible:not(:disabled), textarea:visible:not(:disabled), "
        "summary:visible, a[href]:visible"
    )
    expected = controls.evaluate_all(
        "all => all.filter(one => one.tabIndex >= 0 && one.type !== 'radio').length"
    )
    page.evaluate("document.activeElement.blur()")
    walked: list[dict[str, Any]] = []
    for _ in range(3 * expected):
        page.keyboard.press("Tab")
        now = page.evaluate(FOCUSED)
        if now is None or now["number"] < len(walked):
            break
        walked.append(now)
    # Elements fixed at the window's edge must not cover the element that has the focus.
    assert not [one["html"] for one in walked if one["covered"]]
    unseen = [f"{one['name']}: {one['html']}" for one in walked if not one["seen"]]
    assert not unseen, "\n".join(unseen)
    assert not [one["html"] for one in walked if not one["name"].strip() and one["tag"] != "VIDEO"]
    assert len(walked) >= expected, [one["name"][:30] for one in walked]
    sides = ["left" if one["left"] < 400 else "right" for one in walked]
    assert sides == sorted(sides), [one["name"][:30] for one in walked]


def test_the_keyboard_alone_makes_a_video_and_keeps_its_place(page: Any, stand: Stand, photo: Path) -> None:
    page.set_input_files("input[type=file]", str(photo))
    page.wait_for_selector("#set-image img")
    page.get_by_label("Prompt", exact=True).focus()
    page.keyboard.type("the red ball moves right")
    page.keyboard.press("Control+Enter")
    status(page, state="running")
    page.locator("button:enabled", has_text="End Generation").focus()
    stand.engine.go(FIRST)
    status(page, state="running", frames=33)
    assert "End Generation" in page.evaluate("document.activeElement.innerText")
    page.locator(".lt-seek:enabled").wait_for()  # it shows with the video
    page.locator(".lt-seek").focus()
    stand.engine.go(1)
    status(page, section=2)
    assert page.evaluate("document.activeElement.className") == "lt-seek"
    page.get_by_role("button", name="End Generation").focus()
    page.keyboard.press("Enter")
    status(page, state="cancelled", frames=33)

"""Tests with axe-core that the page's states have no serious violations of accessibility."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.jobs.downloads.manager import Downloads
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import wait_until
from tests.support.pages import FIRST, FURTHER, Stand, choose_model, needs_chromium, open_folds, start, status
from tests.support.staged_engine import FAILING_PROMPT

pytestmark = needs_chromium
AXE = Path(__file__).parents[2] / "vendor" / "axe.min.js"
RUN = """async () => {
    const rules = {'color-contrast': {enabled: true}};
    const found = await axe.run(document, {resultTypes: ['violations'], rules});
    return found.violations.map(one => ({
        id: one.id, impact: one.impact, help: one.help,
        nodes: one.nodes.map(node => node.html.slice(0, 200) + ' | ' + (node.any[0]?.message || '')),
    }));
}"""
# Every animation of the page takes less than a second, but that of a part that is not drawn may stand still.
AT_REST = """() => Promise.race([
    Promise.all(document.getAnimations().map(one => one.finished.catch(() => {}))),
    new Promise((done) => setTimeout(done, 3000)),
])"""


def violations(page: Any) -> list[str]:
    """Return what axe-core calls serious or critical in the current state of the page."""
    # The page's content policy admits no foreign script; scripts from the debugger are exempt.
    page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
    page.evaluate(AT_REST)
    return [
        f"{one['impact']} {one['id']}: {one['help']}\n    " + "\n    ".join(one["nodes"])
        for one in page.evaluate(RUN)
        if one["impact"] in ("serious", "critical")
    ]


@pytest.fixture
def screen() -> dict[str, Any]:
    return {"reduced_motion": "reduce"}


def check(page: Any, state: str) -> None:
    """Check a state on a phone in the light and in a wide window in the dark."""
    found: list[str] = []
    for width, scheme in ((390, "light"), (1440, "dark")):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        found += [f"{state} at {width}: {one}" for one in violations(page)]
    assert not found, "\n" + "\n".join(found)


def test_nothing_serious_in_any_state(page: Any, stand: Stand, photo: Path) -> None:
    check(page, "idle")
    start(page, None, prompt="")
    check(page, "refused")
    open_folds(page)
    page.get_by_text("Stage by stage").click()
    page.get_by_label("Prompt", exact=True).fill("a ball [1.2s: it grows] [3.7s-9s: it moves]")
    page.locator("#set-prompt_blend input").first.fill("2")
    page.get_by_label("Words for section 3, 2.4 – 3.6 s, 67 % new words").wait_for()
    check(page, "open")
    start(page, photo, seconds=2.4)
    stand.engine.go(FIRST)
    status(page, state="running", frames=33)
    stand.engine.go(2)  # a cell says how far it is
    status(page, section=2, step=1)
    check(page, "running")
    stand.engine.go(1000)
    status(page, state="finished")
    check(page, "finished")
    start(page, None, prompt=FAILING_PROMPT)
    status(page, state="failed")
    check(page, "failed")


def test_nothing_serious_with_a_model_that_is_not_here_and_in_a_plan_that_does_not_fit(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    open_folds(page)
    choose_model(page, "Helios Distilled")
    page.get_by_text("Helios Distilled is not on this machine").wait_for()
    assert not page.locator("#set-mode").is_visible()  # there is nothing to choose
    page.locator("#in-seconds").fill("5")
    page.locator("#length").get_by_text("5 s becomes 5.50 s").wait_for()
    check(page, "absent")
    choose_model(page, "Longtake demo model")
    page.locator("#set-vram_cap_gb input[type=number]").fill("0.01")
    page.get_by_text("Does not fit:").wait_for()
    check(page, "does not fit")


def test_nothing_serious_in_the_queue(page: Any, stand: Stand, photo: Path) -> None:
    page.get_by_role("tab", name="Queue").click()
    page.get_by_text("The queue is empty").wait_for()
    check(page, "empty queue")
    jobs = [
        stand.service.queue.add(GenerationRequest(image=str(photo), prompt=one, seconds=2.4))
        for one in "abcd"
    ]
    stand.engine.go(FIRST)
    stand.service.queue.pause(jobs[2].id)
    page.get_by_text("Paused", exact=True).wait_for()
    page.get_by_text("Section 1 of 2 is finished").last.wait_for()
    page.get_by_label("More for b").click()
    check(page, "queue with a menu")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Remove: d").click()
    page.get_by_role("button", name="Undo").wait_for()
    check(page, "removed")
    page.get_by_role("button", name="Edit: b").click()
    page.get_by_role("button", name="Save Changes").wait_for()
    check(page, "edited")
    stand.engine.go(FURTHER + 1 + FIRST)  # the first video ends, and the next one is in the middle
    page.locator(".lt-next").wait_for()
    check(page, "next")
    stand.engine.go(1000)


def test_nothing_serious_on_the_gallery_and_in_a_video(page: Any, stand: Stand, photo: Path) -> None:
    stand.engine.go(10_000)
    request = GenerationRequest(image=str(photo), seconds=3.6)
    jobs = [stand.service.queue.add(replace(request, prompt=prompt)) for prompt in ("a ball", FAILING_PROMPT)]
    wait_until(lambda: all(job.is_over for job in stand.service.jobs()))
    folder = JobFolder(jobs[0].folder)
    folder.sections.mkdir(exist_ok=True)
    for number in (1, 2, 3):  # which a real engine leaves
        folder.latents(number).touch()
    page.goto(f"{stand.url.rstrip('/')}/#history")
    page.wait_for_selector('.lt-videos[data-shown="2"]', state="attached")
    check(page, "gallery")
    for job in jobs:
        page.goto(f"{stand.url.rstrip('/')}/#history/{job.id}")
        page.wait_for_selector(f'.lt-past-open[data-job="{job.id}"]')
        for head in page.locator(".lt-past-open summary:visible").all():
            if head.evaluate("(one) => !one.parentElement.open"):
                head.click()
        check(page, job.request.prompt)


def test_nothing_serious_among_the_models(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(Downloads, "_begin", lambda *_: None)  # nothing is fetched
    page.get_by_role("tab", name="Models").click()
    page.wait_for_selector(".lt-models[data-state=known]")
    check(page, "models")
    card = page.locator(".lt-model-card[data-model=framepack-i2v]")
    card.get_by_text("More about it").click()
    page.get_by_role("button", name="Download: FramePack I2V").click()
    page.get_by_role("button", name="Download it").click()
    page.wait_for_selector(".lt-model-card[data-state=getting]")
    check(page, "models with a download")
    page.get_by_role("button", name="Pause: FramePack I2V").click()
    page.wait_for_selector(".lt-model-card[data-state=paused]")
    check(page, "models with a paused download")

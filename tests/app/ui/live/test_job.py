"""Tests of a watched job: what its events say about progress and time, and what the page shows of it."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.jobs import steering
from app.jobs.job import Job
from app.jobs.storage.logs import append_event
from app.ui.live import subscribe, words
from app.ui.live.progress import LiveJob
from app.ui.live.scene import Presenter, scene_data
from app.ui.live.subscribe import watch
from diffusers_helper.events import Failed, Finished, SectionFinished, StageStarted
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span
from tests.support.jobs import Studio
from tests.support.reported_jobs import history, job_of
from tests.support.whole_answers import whole


def test_a_changed_job_is_shown_with_its_new_words(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    job = studio.submit("a ball", seconds=2.4)
    scenes = watch(studio.service)
    live = next(scenes)
    assert live is not None
    assert [cell.text for cell in live.cells] == ["", ""]
    studio.service.steering.change(job.id, {"prompt": "a ball [1.2s: it stops]"})
    live = next(scenes)
    assert live is not None
    assert [cell.text for cell in live.cells] == ["a ball", "it stops"]


def test_a_page_begins_with_all_that_has_happened(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    job = studio.submit("a ball", seconds=4.8)
    for event in history(job, load=0, first=1, step=1, latent=0):
        if not isinstance(event, Finished):
            append_event(job.folder / "events.jsonl", event)
    live = next(watch(studio.service))
    assert live is not None
    assert live.sections_done == len(live.plan) == 4


def test_a_failed_video_stays_on_the_stage_when_something_else_changes_long_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe, "_RECENT_SECONDS", -1.0)
    studio = Studio(tmp_path)
    service, store = studio.service, studio.service.queue.store
    made, failed = (studio.submit(prompt) for prompt in ("a", "b"))
    scenes = watch(service)
    shown = list[str]()
    for end in (
        Finished(job=made.id, time=9.0, video=str(made.folder / "video.mp4"), frames=33, seconds=1.0),
        Failed(job=failed.id, time=9.0, message="Why.", remedy=""),
    ):
        store.claim(lambda other, job=end.job: "card 0" if other.id == job else None)
        store.record(end)
        service.history.set_favourite(made.id, True)
        shown += [live.job.request.prompt for live in itertools.islice(scenes, 3) if live is not None]
    assert "".join(shown) == "bbbbbb"
    assert [live and live.job.request.prompt for live in itertools.islice(watch(service), 1)] == ["a"]


def finish_section(job: Job, number: int) -> None:
    latents = JobFolder(job.folder).latents(number)
    latents.parent.mkdir(exist_ok=True)
    latents.touch()


@pytest.mark.parametrize("mode", MODES)
def test_takes_that_are_new_are_shown_with_those_before_them(
    tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    seeds = itertools.count(2**53)
    monkeypatch.setattr(steering, "random_seed", lambda: next(seeds))
    studio = Studio(tmp_path)
    job = studio.submit("a ball", mode=mode, seconds=3.6)
    finish_section(job, 1)
    presenter = Presenter(studio.service)
    assert presenter.show_job(job.id)["takes"] is None
    for finished in (1, 2):
        takes = studio.service.steering.takes(job.id, 2)
        for number in range(1, finished + 1):
            finish_section(takes[1], number)
        studio.service.queue.pause(takes[1].id)
    choice = whole(presenter.show_job(job.id)["takes"])
    assert re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "<id>", choice) == snapshot


@pytest.mark.parametrize("mode", MODES)
def test_the_sections_that_a_branch_keeps_are_made_before_it_begins(tmp_path: Path, mode: Mode) -> None:
    job = job_of(mode, 4.8, folder=tmp_path, state="queued", started=None)
    Lineage((Span.of(2, job.request),), "parent", 2).write(tmp_path / "lineage.json")

    def made(live: LiveJob) -> str:
        states = {cell.number: cell.state[0] for cell in live.cells}
        return "".join(states[number] for number in sorted(states))

    live = LiveJob(job)
    assert made(live) == "ddww"
    assert [cell["spoken"] for cell in scene_of(live)["cells"] if cell["isDone"]] == ["finished", "finished"]
    live.job = replace(job, state="running", started=1000.0)
    assert words.remark(live).endswith("then section 3 of 4.")
    hint = scene_of(live)["steering"]["hint"]
    assert f"from {'2.4 to 3.6' if mode == 'forward' else '1.2 to 2.4'} s" in hint
    live.apply(StageStarted(job=job.id, time=1.0, stage="decode", section=2))  # blended with the third
    assert made(live) == "drww"
    assert scene_of(live)["steering"]["hint"] == hint
    live.apply(SectionFinished(job=job.id, time=2.0, section=2, sections=4, video="v", frames=69))
    assert made(live) == "ddww"
    assert made(LiveJob(replace(job, state="cancelled"))) == "dd"


def scene_of(live: LiveJob) -> dict[str, Any]:
    return scene_data(live, 1010.0, lambda job: "")

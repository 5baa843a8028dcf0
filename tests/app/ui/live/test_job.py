"""Tests of a watched job: what its events say about progress and time, and what the page shows of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.jobs.storage.logs import append_event
from app.ui.live import words
from app.ui.live.progress import LiveJob
from app.ui.live.scene import Presenter, scene_data
from app.ui.live.subscribe import watch
from diffusers_helper.events import (
    Finished,
    SectionFinished,
    StageStarted,
)
from diffusers_helper.families.packing import MODES, Mode
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.provenance.lineage import Lineage, Span
from tests.support.jobs import Studio
from tests.support.reported_jobs import history, job_of


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


def test_takes_that_are_new_are_shown_with_those_before_them(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    job = studio.submit("a ball", mode="forward", seconds=3.6)
    first = JobFolder(job.folder).latents(1)
    first.parent.mkdir(exist_ok=True)
    first.touch()
    presenter = Presenter(studio.service)
    assert presenter.show_job(job.id)["takes"] is None
    for hint in ("0 of 2 takes ready", "0 of 4 takes ready"):
        studio.service.steering.takes(job.id, 2)
        assert hint in presenter.show_job(job.id)["takes"]["hint"]


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

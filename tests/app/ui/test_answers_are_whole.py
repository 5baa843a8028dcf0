"""Tests of answers for the page in all of their cases: each filter, each field, each place in the queue."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from app.ui.catalogue import Catalogue
from app.ui.form.actions import Actions
from app.ui.form.settings import PAGE_ONLY, PAGE_SETTINGS
from app.ui.history.endpoints import HistoryCalls
from app.ui.queue import endpoints
from app.ui.queue.endpoints import JobCalls
from tests.support.shared import Sharing


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sharing:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Sharing(tmp_path)


FILTERS: list[dict[str, Any]] = [
    {"text": "zebra"}, {"model": "demo"}, {"min_seconds": 1.0}, {"max_seconds": 9.0}, {"favourites": True},
    {"states": ["failed"]},
]  # fmt: skip


def test_an_empty_search_says_that_there_is_no_video_only_without_any_filter(sharing: Sharing) -> None:
    search = HistoryCalls(sharing.open(start=False), Catalogue()).history_search
    no_video = search()["none"]
    assert no_video.startswith("There is no video yet.")
    assert search(text=" ")["none"] == no_video
    assert {search(**chosen)["none"] for chosen in FILTERS} == {"No video matches this search."}


@pytest.mark.parametrize("model", ["demo", "framepack-f1", "helios-distilled"])
def test_a_reset_gives_each_field_a_value_but_those_that_it_names(sharing: Sharing, model: str) -> None:
    reset = Actions(sharing.open(start=False), Catalogue()).form_reset(model)
    fields = {*PAGE_SETTINGS, *PAGE_ONLY}
    assert fields - reset.get("values", {}).keys() == {"image", "end_image", "prompt"}


@pytest.mark.parametrize("known", list(itertools.product([True, False], repeat=3)))
def test_the_time_at_which_a_job_begins_is_known_while_all_before_it_are(
    sharing: Sharing, known: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [10.0 if is_known else None for is_known in known]
    monkeypatch.setattr(endpoints, "seconds_left", lambda jobs, paces: seconds[: len(jobs)])
    service = sharing.open(start=False)
    for prompt in "abc":
        sharing.add(service, prompt)
    queue = JobCalls(service, Catalogue()).jobs_queue()
    begins = [job["begins_in"] for job in queue["jobs"]]
    assert begins == [10.0 * n if all(known[:n]) else None for n in range(3)]
    assert queue["left"] == (30.0 if all(known) else None)

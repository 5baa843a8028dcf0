"""A state machine of the history and of the trash over weeks, beside plain lists of them."""

import math
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.jobs.history import Retention, tidy
from app.jobs.job import NoSuchJob
from app.jobs.service import JobService
from app.jobs.storage.trash import removed_jobs
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture

DAY = 86400.0
KEPT_DAYS, TRASH_DAYS, PAGE = 30, 7, 2
ANY, BY = st.integers(0, 20), st.integers(0, 1)
DAYS = st.sampled_from([0.0, 0.0, 0.01, 3.0, TRASH_DAYS + 0.5, KEPT_DAYS + 0.5])
WORDS = ("a red ball", 'the "ball" <b>&amp;</b>\nrolls', "ein GRÜNER Ball", "")
SEARCHES = ("", "ball red", "grüner", "&AMP;", "100 %")


@dataclass
class Known:
    """A job as the model knows it, in the order of the fields by which the history lists jobs."""

    created: float
    job: str
    words: str
    state: str = "queued"
    ended: float | None = None
    removed: float | None = None
    favourite: bool = False

    @property
    def may_go(self) -> bool:
        return self.state == "cancelled" and not self.favourite


class HistoryMachine(RuleBasedStateMachine):
    """Users of two programs add, end, remove and restore jobs while days pass and one of them tidies up.

    Several jobs are created, ended and removed at the same moment, as the time passes only between rules.
    """

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.picture = str(write_picture(self.folder / "picture.png"))
        self.now = time.time()
        self.patch, utime = pytest.MonkeyPatch(), os.utime
        self.patch.setattr(time, "time", lambda: self.now)
        self.patch.setattr(os, "fsync", lambda _: None)  # it takes most of the time
        self.patch.setattr("app.jobs.storage.trash.os.utime", lambda path: utime(path, (self.now, self.now)))
        self.jobs: list[Known] = []
        self.programs = [JobService(self.folder / "outputs") for _ in range(2)]
        for words in (WORDS[0], WORDS[1], WORDS[0]):
            self.add(words, 0.0, 0)
        self.end(0, 0.0, 0)

    def some(self, number: int, *, removed: bool = False, state: str = "") -> Known | None:
        jobs = [
            job
            for job in self.jobs
            if (job.removed is not None) == removed and job.state == (state or job.state)
        ]
        return jobs[number % len(jobs)] if jobs else None

    @rule(words=st.sampled_from(WORDS), days=DAYS, by=BY)
    def add(self, words: str, days: float, by: int) -> None:
        self.now += days * DAY
        request = GenerationRequest(image=self.picture, prompt=words, seconds=1.0)
        job = self.programs[by].queue.add(request)
        self.jobs.append(Known(job.created, job.id, f"{words} 31337".casefold()))

    @precondition(lambda self: self.some(0, state="queued"))
    @rule(number=ANY, days=DAYS, by=BY)
    def end(self, number: int, days: float, by: int) -> None:
        self.now += days * DAY
        job = self.some(number, state="queued")
        assert job
        assert self.programs[by].queue.cancel(job.job)
        job.state, job.ended = "cancelled", self.now

    @precondition(lambda self: self.some(0, state="cancelled"))
    @rule(number=ANY, by=BY)
    def resume(self, number: int, by: int) -> None:
        job = self.some(number, state="cancelled")
        assert job
        self.programs[by].queue.resume(job.job)
        job.state, job.ended = "queued", None

    @precondition(lambda self: self.some(0))
    @rule(number=ANY, by=BY)
    def like(self, number: int, by: int) -> None:
        job = self.some(number)
        assert job
        job.favourite = not job.favourite
        assert self.programs[by].history.set_favourite(job.job, job.favourite).favourite == job.favourite

    @precondition(lambda self: self.some(0))
    @rule(number=ANY, days=DAYS, by=BY)
    def remove(self, number: int, days: float, by: int) -> None:
        self.now += days * DAY
        job = self.some(number)
        assert job
        self.programs[by].queue.remove(job.job)
        job.removed = self.now

    @precondition(lambda self: self.some(0, removed=True))
    @rule(number=ANY, by=BY)
    def restore(self, number: int, by: int) -> None:
        job = self.some(number, removed=True)
        assert job
        assert self.programs[by].queue.restore(job.job).state == job.state
        job.removed = None

    @precondition(lambda self: len(self.jobs) > 2)
    @rule(number=ANY, by=BY)
    def delete(self, number: int, by: int) -> None:
        job = self.jobs[number % len(self.jobs)]
        self.programs[by].queue.delete(job.job)
        self.forget(job)

    def forget(self, *jobs: Known) -> None:
        for job in jobs:
            self.jobs.remove(job)
            with pytest.raises(NoSuchJob):
                self.programs[0].queue.restore(job.job)

    @rule(days=DAYS, keeps=st.sampled_from([math.inf, KEPT_DAYS]), by=BY)
    def tidy(self, days: float, keeps: float, by: int) -> None:
        self.now += days * DAY
        here = [job for job in self.jobs if job.removed is None]
        old = [job for job in here if job.may_go and (job.ended or job.created) < self.now - keeps * DAY]
        tidied = tidy(self.programs[by].queue.store, Retention(keeps * DAY))
        assert sorted(tidied) == sorted(job.job for job in old)
        for job in old:
            job.removed = self.now
        removed = [job for job in self.jobs if job.removed is not None]
        self.forget(*(job for job in removed if self.now - (job.removed or 0.0) > TRASH_DAYS * DAY))

    @invariant()
    def all_that_is_there_is_listed_newest_first(self) -> None:
        here = sorted(
            (job for job in self.jobs if job.removed is None), key=lambda job: (job.created, job.job)
        )
        for text in SEARCHES:
            expected = [
                job for job in here[::-1] if all(word in job.words for word in text.casefold().split())
            ]
            assert self.pages(text=text) == [job.job for job in expected], text
        assert self.pages(states=["cancelled"]) == [job.job for job in here[::-1] if job.state == "cancelled"]
        assert self.pages(favourites=True) == [job.job for job in here[::-1] if job.favourite]
        trash = {folder.name for folder in removed_jobs(self.folder / "outputs")}
        assert trash == {job.job for job in self.jobs if job.removed is not None}

    def pages(self, **conditions: object) -> list[str]:
        """Return all that a search finds, page by page."""
        history, ids, before = self.programs[1].history, list[str](), ""
        while True:
            page = history.search(**conditions, limit=PAGE, before=before)  # pyright: ignore
            ids += [job.id for job in page.jobs]
            if not page.next:
                assert page.total == len(ids)
                return ids
            before = page.next

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)


TestHistory = pytest.mark.slow(HistoryMachine.TestCase)
TestHistory.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)

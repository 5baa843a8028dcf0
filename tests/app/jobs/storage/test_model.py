"""A state machine that edits a queue from two programs at random, beside a plain model of it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.jobs.queue import Queue
from app.jobs.storage.store import JobStore
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture

ANY = st.integers(0, 20)


class QueueMachine(RuleBasedStateMachine):
    """Two programs change one queue, of which each may claim jobs and die.

    Attributes:
        order: The jobs that are not over, in the order of the queue.
        states: The state of each job.
        removed: The jobs in the trash, with the state and the place in the queue that they had.
    """

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda _: None)  # it takes most of the time
        self.picture = write_picture(self.folder / "picture.png")
        self.programs = [self.program() for _ in range(2)]
        self.states: dict[str, str] = {}
        self.places: dict[str, float] = {}
        self.made_by: dict[str, int] = {}
        self.removed: dict[str, str] = {}
        self.is_paused = False

    def program(self) -> Queue:
        store = JobStore(self.folder / "outputs")
        store.adopts = True
        return Queue(store)

    @property
    def order(self) -> list[str]:
        jobs = [job for job, state in self.states.items() if state not in ("finished", "cancelled")]
        return sorted(jobs, key=lambda job: (self.places[job], job))

    def one_in(self, number: int, *states: str) -> str:
        jobs = [job for job in sorted(self.states) if self.states[job] in states]
        return jobs[number % len(jobs)] if jobs else ""

    @rule(by=st.integers(0, 1))
    def add(self, by: int) -> None:
        request = GenerationRequest(image=str(self.picture), model="demo", seconds=1.0)
        job = self.programs[by].add(request)
        assert not self.places or job.position > max(self.places.values())
        self.states[job.id], self.places[job.id] = "queued", job.position

    @precondition(lambda self: len(self.order) > 1)
    @rule(by=st.integers(0, 1), number=ANY, other=ANY, is_after=st.booleans())
    def move(self, by: int, number: int, other: int, is_after: bool) -> None:
        job = self.one_in(number, "queued", "paused", "interrupted")
        others = [one for one in self.order if one != job]
        if not job or not others:
            return
        neighbour = others[other % len(others)]
        others.insert(others.index(neighbour) + is_after, job)
        how = {"after": neighbour} if is_after else {"before": neighbour}
        self.programs[by].move(job, **how)
        listed = self.programs[1 - by].jobs()
        assert [one.id for one in listed] == others
        self.places |= {one.id: one.position for one in listed}

    @rule(by=st.integers(0, 1), number=ANY)
    def pause(self, by: int, number: int) -> None:
        job = self.one_in(number, "queued", "interrupted")
        if job:
            assert self.programs[by].pause(job)
            self.states[job] = "paused"

    @rule(by=st.integers(0, 1), number=ANY)
    def cancel(self, by: int, number: int) -> None:
        job = self.one_in(number, "queued", "paused", "interrupted")
        if job:
            assert self.programs[by].cancel(job)
            assert not self.programs[1 - by].cancel(job)
            self.states[job] = "cancelled"

    @rule(by=st.integers(0, 1), number=ANY)
    def resume(self, by: int, number: int) -> None:
        job = self.one_in(number, "paused", "interrupted", "cancelled")
        if job:
            last, position = max(self.places.values()), self.programs[by].resume(job).position
            was_over = self.states[job] == "cancelled"
            assert position > last if was_over else position == self.places[job]
            self.places[job] = position
            self.states[job] = "queued"

    @rule(by=st.integers(0, 1), number=ANY)
    def remove(self, by: int, number: int) -> None:
        job = self.one_in(number, "queued", "paused", "interrupted", "cancelled", "finished")
        if job:
            self.programs[by].remove(job)
            self.removed[job] = self.states.pop(job)

    @rule(by=st.integers(0, 1), number=ANY)
    def restore(self, by: int, number: int) -> None:
        if self.removed:
            job = sorted(self.removed)[number % len(self.removed)]
            self.programs[by].restore(job)
            self.states[job] = self.removed.pop(job)

    @rule(by=st.integers(0, 1))
    def claim(self, by: int) -> None:
        claimed = self.programs[by].store.claim(lambda job: "card")
        queued = [job for job in self.order if self.states[job] == "queued"]
        expected = queued[0] if queued and not self.is_paused else None
        assert (claimed[0].id if claimed else None) == expected
        if expected:
            self.states[expected], self.made_by[expected] = "running", by

    @rule(number=ANY)
    def finish(self, number: int) -> None:
        job = self.one_in(number, "running")
        if job:
            self.programs[self.made_by[job]].store.enter(job, "finished")
            self.states[job] = "finished"

    @rule(by=st.integers(0, 1))
    def die(self, by: int) -> None:
        """End a program, and let the other one find its jobs."""
        self.programs[by].store.release()
        self.programs[by] = self.program()
        self.programs[1 - by].store.recover()
        for job, state in self.states.items():
            if (state == "running" and self.made_by[job] == by) or state == "interrupted":
                self.states[job] = "queued"

    @rule(by=st.integers(0, 1))
    def pause_all(self, by: int) -> None:
        if all(state != "running" for state in self.states.values()):
            self.programs[by].pause_queue()
            self.is_paused = True

    @rule(by=st.integers(0, 1))
    def go_on(self, by: int) -> None:
        if self.is_paused:
            self.programs[by].resume_queue()
            self.is_paused = False

    @invariant()
    def both_programs_see_the_same(self) -> None:
        for program in self.programs:
            assert program.is_paused == self.is_paused
            assert [job.id for job in program.jobs()] == self.order
            assert {job.id: job.state for job in program.store.jobs("")} == self.states

    def teardown(self) -> None:
        for program in self.programs:
            program.store.release()
        self.patch.undo()
        shutil.rmtree(self.folder)


TestQueue = pytest.mark.slow(QueueMachine.TestCase)
TestQueue.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)

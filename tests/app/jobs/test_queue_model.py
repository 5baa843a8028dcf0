"""A state machine of the queue beside plain lists: places, commands, deaths and takes, by two programs."""

import errno
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.jobs.job import NoSuchJob
from app.jobs.service import JobService
from app.jobs.storage.commands import PAUSED
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Failed, Finished, SectionFinished, StepDone
from diffusers_helper.provenance.job_folder import JobFolder
from diffusers_helper.request import GenerationRequest
from tests.support.jobs import write_picture

SECTIONS, MOST_DEATHS = 4, 2
MEMORY = Path("/dev/shm")  # where a sync takes no time
MOST_JOBS = 7
ANY, BY = st.integers(0, 30), st.integers(0, 1)
OVER = ("finished", "failed", "cancelled")
MOVABLE = ("queued", "paused", "interrupted")


@dataclass(eq=False)
class Known:
    """A job as the model knows it; the list that it is in has the order of the queue."""

    job: str
    prompt: str
    parent: str = ""
    kept: int = 0
    state: str = "queued"
    commands: set[str] = field(default_factory=set[str])
    by: int = 0  # the program that makes it
    sections: int = 0
    step: int = 0  # of the section that is being made, the last thing in its log; 0 for anything else
    deaths: int = 0
    death: tuple[int, int] = (0, 0)
    has_begun: bool = False
    is_removed: bool = False

    def enter(self, state: str) -> None:
        self.state = state
        self.commands &= {"wait"}


class QueueMachine(RuleBasedStateMachine):
    """Users and makers in two programs on one folder, which are killed at times, or find the disk full."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.picture = str(write_picture(self.folder / "picture.png"))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("app.jobs.storage.commands._MOST_DEATHS", MOST_DEATHS)
        self.order: list[Known] = []
        self.held: list[Known] | None = None
        self.submitted: list[set[str]] = [set(), set()]
        self.programs = [JobService(self.folder / "outputs") for _ in range(2)]
        self.looked = 0
        for prompt in "abc":
            self.add(prompt, 0)
        self.make(0, 0, ["section", "step"])

    def here(self, *states: str) -> list[Known]:
        return [job for job in self.order if not job.is_removed and (not states or job.state in states)]

    def pick(self, number: int, *states: str) -> Known:
        jobs = self.here(*states)
        return jobs[number % len(jobs)]

    def note(self, job_id: str, prompt: str, by: int, **facts: int | str) -> Known:
        known = Known(job_id, prompt, **facts)  # pyright: ignore[reportArgumentType]
        self.order.append(known)
        self.submitted[by].add(job_id)
        return known

    @precondition(lambda self: len(self.order) < MOST_JOBS)
    @rule(prompt=st.sampled_from("abc"), by=BY)
    def add(self, prompt: str, by: int) -> None:
        request = GenerationRequest(
            image=self.picture, prompt=prompt, model="demo", seconds=1.2 * SECTIONS, mode="forward"
        )
        self.note(self.programs[by].queue.add(request).id, prompt, by)

    @precondition(lambda self: self.here() and len(self.order) < MOST_JOBS)
    @rule(number=ANY, by=BY)
    def duplicate(self, number: int, by: int) -> None:
        job = self.pick(number)
        self.note(self.programs[by].queue.duplicate(job.job).id, job.prompt, by)

    @precondition(lambda self: self.here())
    @rule(number=ANY, by=BY)
    def edit(self, number: int, by: int) -> None:
        job, queue = self.pick(number), self.programs[by].queue
        request = replace(queue.store.job(job.job).request, prompt="edited")
        if job.state in ("queued", "paused") and not job.has_begun:
            queue.edit(job.job, request)
            job.prompt = "edited"
        else:
            with pytest.raises(InputError, match="has begun"):
                queue.edit(job.job, request)

    @precondition(lambda self: len(self.here()) > 1)
    @rule(number=ANY, other=ANY, place=st.sampled_from(["before", "after", "first", "last"]), by=BY)
    def move(self, number: int, other: int, place: str, by: int) -> None:
        job, neighbour, queue = self.pick(number), self.pick(other), self.programs[by].queue
        moves = {
            "before": lambda: queue.move(job.job, before=neighbour.job),
            "after": lambda: queue.move(job.job, after=neighbour.job),
            "first": lambda: queue.move_first(job.job),
            "last": lambda: queue.move(job.job),
        }
        queued = [known for known in self.here() if known.state not in OVER]
        others = [known for known in queued if known is not job]
        if job.state not in MOVABLE or (place in ("before", "after") and neighbour not in others):
            with pytest.raises(InputError):
                moves[place]()
            return
        moves[place]()
        waiting = [known for known in others if known.state in MOVABLE]
        index = len(others)
        if place == "first" and waiting:
            index = others.index(waiting[0])
        elif place in ("before", "after"):
            index = others.index(neighbour) + (place == "after")
        others.insert(index, job)
        slots = [self.order.index(known) for known in queued]
        for slot, known in zip(slots, others, strict=True):
            self.order[slot] = known

    @precondition(lambda self: self.here())
    @rule(number=ANY, command=st.sampled_from(["cancel", "pause", "stop_after_section"]), by=BY)
    def command(self, number: int, command: str, by: int) -> None:
        job = self.pick(number)
        asked = getattr(self.programs[by].queue, command)(job.job)
        assert asked == self.ask(job, command), (command, job.state)

    def ask(self, job: Known, command: str) -> bool:
        """Do to the model what a command does to a job, and return whether it does something."""
        allowed = {
            "cancel": (*MOVABLE, "running"),
            "pause": ("queued", "interrupted", "running"),
            "stop_after_section": ("running",),
        }
        if job.state not in allowed[command]:
            return False
        if job.state == "running":
            job.commands.add(command)
        else:
            job.enter("cancelled" if command == "cancel" else "paused")
        return True

    @precondition(lambda self: self.here())
    @rule(number=ANY, on=st.booleans(), by=BY)
    def wait(self, number: int, on: bool, by: int) -> None:
        job = self.pick(number)
        if job.state in OVER:
            with pytest.raises(InputError):
                self.programs[by].steering.wait(job.job, on)
            return
        self.programs[by].steering.wait(job.job, on)
        (job.commands.add if on else job.commands.discard)("wait")

    @precondition(lambda self: self.here())
    @rule(number=ANY, by=BY)
    def resume(self, number: int, by: int) -> None:
        job = self.pick(number)
        others = self.not_chosen(job)
        self.programs[by].steering.resume(job.job)
        self.put_back(job, by)
        for other in others:
            self.ask(other, "cancel")

    def put_back(self, job: Known, by: int) -> None:
        self.submitted[by].add(job.job)
        if job.state in ("running", "queued", "finished"):
            job.commands.discard("pause")
            return
        if job.state in OVER:
            self.order.append(self.order.pop(self.order.index(job)))
        job.enter("queued")
        job.deaths, job.death, job.step = 0, (0, 0), 0

    def not_chosen(self, job: Known) -> list[Known]:
        """Choose what ends if a take goes on: the other takes, and their parent if it is paused."""
        if job.state != "paused":
            return []
        parent = next((known for known in self.here() if known.job == job.parent), None)
        for first, keep in ((job, job.sections - 1), (parent, job.kept)):
            root = job.job if first is job else job.parent
            takes = [
                take
                for take in self.here()
                if (take.parent, take.kept, "wait" in take.commands) == (root, keep, True)
                and take is not job
                and (
                    take.state not in OVER
                    if take.sections <= keep
                    else take.sections == keep + 1 and take.state in ("paused", "finished")
                )
            ]
            if takes and root and 0 < keep == job.sections - 1:
                ends = first is parent and parent and parent.state == "paused"
                return [*takes, *([parent] if ends and parent else [])]
        return []

    @precondition(lambda self: any(0 < job.sections < SECTIONS for job in self.here()))
    @rule(number=ANY, by=BY)
    def take(self, number: int, by: int) -> None:
        jobs = [job for job in self.here() if 0 < job.sections < SECTIONS]
        job = jobs[number % len(jobs)]
        if job.state == "running":
            job.commands.add("pause")
        for take in self.programs[by].steering.takes(job.job, 2):
            known = self.note(take.id, job.prompt, by, parent=job.job, kept=job.sections)
            known.commands.add("wait")
            known.sections = job.sections

    @rule(by=BY)
    def hold(self, by: int) -> None:
        self.programs[by].queue.pause_queue()
        self.held = self.here("running") if self.held is None else self.held
        for job in self.held:
            if not job.is_removed:
                self.ask(job, "pause")

    @rule(by=BY)
    def go_on(self, by: int) -> None:
        self.programs[by].queue.resume_queue()
        for job in self.held or []:
            if not job.is_removed and job.state in ("paused", "running"):
                self.put_back(job, by)
        self.held = None

    @precondition(lambda self: self.here())
    @rule(number=ANY, by=BY, delete=st.booleans())
    def remove(self, number: int, by: int, delete: bool) -> None:
        job, queue = self.pick(number), self.programs[by].queue
        act = queue.delete if delete else queue.remove
        if job.state == "running":
            with pytest.raises(InputError, match="is being made"):
                act(job.job)
            return
        act(job.job)
        job.is_removed = True
        if delete:
            self.order.remove(job)
            with pytest.raises(NoSuchJob):
                queue.restore(job.job)

    @precondition(lambda self: any(job.is_removed for job in self.order))
    @rule(number=ANY, by=BY)
    def restore(self, number: int, by: int) -> None:
        removed = [job for job in self.order if job.is_removed]
        job = removed[number % len(removed)]
        self.programs[by].queue.restore(job.job)
        job.is_removed = False

    def claim(self, by: int) -> None:
        """Have a program make the first job that waits, unless the whole queue is paused."""
        store = self.programs[by].queue.store
        store.adopts = True
        claimed = store.claim(lambda job: "card")
        store.adopts = False
        queued = self.here("queued") if self.held is None else []
        assert (claimed and claimed[0].id) == (queued[0].job if queued else None)
        if queued:
            queued[0].state, queued[0].by, queued[0].has_begun = "running", by, True

    @rule(number=ANY, by=BY, does=st.lists(st.sampled_from(["step", "section", "fail"]), max_size=3))
    def make(self, number: int, by: int, does: list[str]) -> None:
        """A maker takes a job, and obeys what it is asked; otherwise it makes steps or sections, or fails."""
        if not does or not self.here("running"):
            self.claim(by)
        job = self.pick(number, "running") if self.here("running") else None
        for what in does:
            if job and job.state == "running":
                self.go(job, what)

    def go(self, job: Known, what: str) -> None:
        store, folder = self.programs[job.by].queue.store, JobFolder(self.folder / "outputs" / job.job)
        facts = {"job": job.job, "time": 1.0}
        asked = store.commands(job.job)
        if "cancel" in asked:
            store.record(Cancelled(**facts, video=None, frames=0))
            job.enter("cancelled")
        elif "pause" in asked:
            store.enter(job.job, "paused", **PAUSED)
            job.enter("paused")
        elif what == "fail":
            store.record(Failed(**facts, message="It failed.", remedy="Try again."))
            job.enter("failed")
        elif what == "step":
            job.step = 1
            store.record(StepDone(**facts, section=job.sections + 1, step=1, steps=9))
            return
        else:
            folder.sections.mkdir(exist_ok=True)
            job.sections, job.step = job.sections + 1, 0
            folder.latents(job.sections).write_bytes(b"latents")
            if job.sections < SECTIONS:
                store.record(
                    SectionFinished(**facts, section=job.sections, sections=SECTIONS, video="", frames=9)
                )
                return
            store.record(Finished(**facts, video="", frames=9, seconds=1.0))
            job.enter("finished")
        job.step = 0
        store.release_job(job.job)

    @rule(by=BY, adopts=st.booleans())
    def kill(self, by: int, adopts: bool) -> None:
        """A program dies, and the other one looks after the jobs that it was making."""
        self.programs[by].queue.store.release()  # as the kernel does with its lock
        self.programs[by], self.submitted[by] = JobService(self.folder / "outputs"), set()
        other = self.programs[1 - by].queue.store
        other.adopts = adopts
        other.recover()
        other.adopts = False
        for job in self.here("running", "interrupted"):
            if job.state == "running" and job.by == by:
                if job.step:
                    death = job.sections, job.step
                    job.deaths, job.death = job.deaths + 1 if death == job.death else 1, death
                job.state = "interrupted"
            if job.state != "interrupted":
                continue
            if "cancel" in job.commands or "pause" in job.commands:
                job.enter("cancelled" if "cancel" in job.commands else "paused")
            elif job.deaths >= MOST_DEATHS:
                job.enter("failed")
            elif adopts or job.job in self.submitted[1 - by]:
                job.state = "queued"
            else:
                continue
            job.step = 0

    @precondition(lambda self: self.here())
    @rule(number=ANY, by=BY, what=st.integers(0, 7))
    def find_the_disk_full(self, number: int, by: int, what: int) -> None:
        """A change that the disk has no room for is refused, and nothing has changed."""
        job, program = self.pick(number), self.programs[by]
        changes = (
            lambda: self.add("a", by), program.queue.pause_queue, program.queue.resume_queue,
            lambda: program.queue.move_first(job.job), lambda: program.queue.remove(job.job),
            lambda: program.queue.pause(job.job), lambda: program.queue.resume(job.job),
            lambda: program.steering.takes(job.job, 1),
        )  # fmt: skip
        if what == 6:
            self.submitted[by].add(job.job)

        def fail(database: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("app.jobs.storage.database._commit", fail)
            with pytest.raises(InputError):
                changes[what]()

    @invariant()
    def both_programs_list_what_the_model_has(self) -> None:
        outputs = self.folder / "outputs"
        queued = [job.job for job in self.here() if job.state not in OVER]
        expected = {job.job: (job.state, job.prompt, job.commands) for job in self.here()}
        self.looked += 1  # one of them at a time, since opening the database takes most of the time
        for program in self.programs[self.looked % 2 :][:1]:
            assert [job.id for job in program.queue.jobs()] == queued
            store, commands = program.queue.store, dict[str, set[str]]()
            for row in store._database.select("SELECT job, command FROM commands"):
                commands.setdefault(row["job"], set()).add(row["command"])
            listed = program.jobs(1000)
            assert {
                job.id: (job.state, job.request.prompt, commands.get(job.id, set())) for job in listed
            } == expected
            assert program.queue.is_paused == (self.held is not None)
        assert {path.name for path in outputs.glob("[!.]*")} == expected.keys()
        assert not list(outputs.glob(".*.tmp"))

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)


TestQueue = pytest.mark.slow(QueueMachine.TestCase)
TestQueue.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)

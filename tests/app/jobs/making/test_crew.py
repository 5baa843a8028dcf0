"""Tests of which card gets which job and which lock, over stand-ins for cards and the store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from app.jobs.history import Retention
from app.jobs.job import Job
from app.jobs.making import crew as module
from app.jobs.making.crew import Crew
from app.jobs.making.worker import Worker
from diffusers_helper.errors import InputError
from diffusers_helper.events import Cancelled, Failed, SectionFinished
from tests.support.reported_jobs import job_of


class Seat:
    """A worker and its card, which a job fits that needs no more than its size."""

    def __init__(self, key: str, size: int, machine: str = "") -> None:
        self.key, self.label, self.machine = key, f"card {key}", machine
        self.profile = SimpleNamespace(cap_bytes=SimpleNamespace(value=size))
        self.size, self.name = f"{size} GB", f"card {key} ({size} GB)"
        self.card = self
        self.is_in_service = True
        self.job, self.trouble, self.failures, self.gives_back = "", "", 0, False
        self.made: list[str] = []
        self.rests: list[bool] = []

    @property
    def is_busy(self) -> bool:
        return bool(self.job)

    def fits(self, job: Job) -> bool:
        return job.frames <= self.profile.cap_bytes.value

    def lacks(self, job: Job) -> str:
        return "lacks the model" if self.machine else ""

    def make(self, job: Job) -> None:
        self.job = job.id
        self.made.append(job.id)

    def rest(self, *, leaves: bool) -> None:
        self.rests.append(leaves)


class Store:
    """A store in which jobs wait, and whose locks can be taken by another program."""

    adopts = False

    def __init__(self) -> None:
        self.work, self.taken, self.held, self.out = True, set[str](), set[str](), dict[str, bool]()
        self.waiting: list[Job] = []

    def has_work(self) -> bool:
        return self.work

    def lock_card(self, key: str) -> object:
        if key in self.taken:
            return None
        self.held.add(key)
        return SimpleNamespace(release=lambda: self.held.remove(key))

    def claim(self, choose: Callable[[Job], Any]) -> tuple[Job, Any] | None:
        for job in self.waiting:
            if maker := choose(job):
                self.waiting.remove(job)
                return job, maker
        return None

    def select(self, *_: object, **__: object) -> list[Any]:
        return []

    @contextmanager
    def change(self) -> Iterator[None]:
        yield

    def set_out(self, key: str, is_out: bool) -> None:
        self.out[key] = is_out


def crew_of(*seats: Seat) -> tuple[Any, Store]:
    store = Store()
    crew: Any = Crew(store, lambda: None, Retention())  # pyright: ignore[reportArgumentType]
    crew.workers = seats
    return crew, store


def needs(size: int, job_id: str = "j", **facts: Any) -> Job:
    return job_of(id=job_id, frames=size, **{"state": "queued", **facts})


def keys(seats: list[Seat]) -> str:
    return "".join(seat.key for seat in seats)


def told(crew: Any, *sizes: int, **facts: Any) -> str:
    """Tell for jobs of these sizes which cards may make them, and why they wait."""
    jobs = [needs(size, **facts) for size in sizes]
    return "; ".join(
        f"{job.frames}: {keys(crew.workers_for(job))} {crew.indices_for(job)} {crew.why_waiting(job)}".strip()
        for job in jobs
    )


def seats() -> tuple[Seat, Seat, Seat]:
    return Seat("a", 24), Seat("b", 8), Seat("c", 16)


def test_which_cards_may_make_a_job_and_why_it_waits(snapshot: SnapshotAssertion) -> None:
    a, b, c = seats()
    crew, _ = crew_of(a, b, c)
    lines = [f"three cards: {told(crew, 8, 9, 16, 24, 25)}", f"running: {told(crew, 24, state='running')}"]
    b.job = "j"
    lines.append(f"b makes it: {told(crew, 8, 16)}")
    b.job, a.is_in_service = "", False
    lines.append(f"a is out: {told(crew, 8, 16, 24, 25)}")
    c.is_in_service = False
    lines.append(f"a and c are out: {told(crew, 8, 16, 24)}")
    crew.missing = "Others are not there yet."
    lines.append(f"others are missing: {told(crew, 16, 25)}")
    crew.missing, a.machine = "", "desk"
    lines.append(f"a is elsewhere: {told(crew, 8, 24, 25)}")
    alone, _ = crew_of(b)
    lines.append(f"b alone: {told(alone, 8, 25)}")
    alone.missing = "Others are not there yet."
    lines.append(f"b alone for now: {told(alone, 8, 25)}")
    desk, _ = crew_of(Seat("d", 8, "desk"), Seat("e", 24))
    lines.append(f"a desk beside: {told(desk, 20)}")
    desk.workers = ()
    lines.append(f"none: {told(desk, 20)}")
    assert lines == snapshot


def test_what_follows_the_death_of_an_engine_and_who_serves(snapshot: SnapshotAssertion) -> None:
    a, b, c = seats()
    crew, store = crew_of(a, b, c)
    lines = list[str]()

    def tell(what: str, said: object) -> None:
        facts = [(seat.key, seat.failures, seat.trouble, seat.gives_back) for seat in (a, b, c)]
        cards = " ".join(keys(crew.workers_for(needs(8, job))) for job in ("j", "another", "third"))
        lines.append(f"{what}: {said} | {cards} | {facts} | {store.out}")

    tell("b dies", crew.passes_on(b, needs(8)))
    c.is_in_service = False
    tell("b dies with another one, and c is out", crew.passes_on(b, needs(8, "another")))
    a.is_in_service = False
    tell("b dies alone", crew.passes_on(b, needs(8, "third")))
    tell("b leaves", crew.serve("b", leaves=True))
    for leaves, now, job in ((True, True, "j"), (True, True, ""), (True, False, "j"), (False, True, "j")):
        b.job = job
        tell(f"b with {job!r}, leaves {leaves}, now {now}", crew.serve("b", leaves=leaves, now=now))
    with pytest.raises(InputError, match="no card 'x'; expected one of a, b, c"):
        crew.serve("x")
    assert lines == snapshot


def test_who_gets_the_next_jobs_and_which_cards_are_locked(snapshot: SnapshotAssertion) -> None:
    a, b, c, d = (*seats(), Seat("d", 4))
    crew, store = crew_of(a, b, c, d)
    lines = list[str]()

    def tell(what: str) -> None:
        facts = [(seat.key, seat.job, seat.made, seat.rests) for seat in (a, b, c, d)]
        waiting = [job.id for job in store.waiting]
        lines.append(f"{what}: {facts}, waiting {waiting}, held {sorted(store.held)}, {crew.is_follower}")

    c.job, store.taken = "made", {"d"}
    tell(f"locks {crew.lock_cards()}")
    store.waiting = [needs(16, "1"), needs(4, "2"), needs(4, "3")]
    for what in ("a and b are free", "a has ended", "a has ended again"):
        crew._assign_jobs()
        tell(what)
        a.job = ""
    c.job, b.is_in_service = "", False  # b is busy, and its own lock
    tell(f"b is out and busy {crew.lock_cards()}, {crew.uses(b)}")
    b.job = ""
    tell(f"b is out {crew.lock_cards()}, {crew.uses(b)}")
    store.work = False
    tell(f"no work {crew.lock_cards()}")
    store.work, store.taken = True, {"a", "b", "c", "d"}
    tell(f"all are taken {crew.lock_cards()}")
    assert lines == snapshot


def test_the_memory_of_a_card_is_given_back_after_a_pause_unless_a_job_follows() -> None:
    closed: list[str] = []
    worker: Any = object.__new__(Worker)
    worker._engine = SimpleNamespace(close=lambda: closed.append("closed"))
    worker._orders, worker._frees = SimpleQueue(), True
    worker.rest(leaves=False)
    worker.rest(leaves=False)
    assert closed == ["closed"]
    worker._frees = True
    worker.make(job_of())
    worker.rest(leaves=False)
    assert (worker.job, len(closed)) == (job_of().id, 1)
    worker.rest(leaves=True)
    assert len(closed) == 2


def test_the_crew_warms_up_once_tidies_each_hour_and_after_a_job_and_leaves_its_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, _ = seats()
    crew, store = crew_of(a, b)
    heard, now, removed = list[str](), [0.0], ["old"]
    crew.on_change = lambda: heard.append("changed")
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(module, "tidy", lambda *_: heard.append("tidied") or removed)
    for seat in (a, b):
        seat.warm_up = lambda seat=seat: heard.append(f"warms {seat.key}")  # pyright: ignore
        seat.interrupt = lambda: None  # pyright: ignore
        seat.stop = lambda timeout, seat=seat: heard.append(f"stops {seat.key}")  # pyright: ignore

    def look(times: int, warm: bool = False) -> list[str]:
        heard.clear()
        rounds = iter(range(times))
        monkeypatch.setattr(
            crew._woken, "wait", lambda _: crew._stopping.set() if next(rounds) + 1 == times else 0
        )
        crew._stopping.clear()
        crew._work(warm)
        return heard

    store.taken = {"b"}
    assert look(3, warm=True) == ["warms a"]  # which tidies no folder of another program
    store.adopts = True
    assert look(3) == ["tidied", "changed"]
    now[0], removed[:] = 3599.0, []
    assert look(1) == []
    now[0] = 3600.0
    assert look(2) == ["tidied"]
    crew._job_ended()
    assert look(2) == ["tidied"]
    store.adopts, store.taken = False, {"a", "b"}
    look(1)
    assert store.held == set()  # without a job of its own, it leaves the cards to others
    look(1)
    assert crew.is_follower
    look(1)
    crew.stop(1.0)
    assert (crew.workers, crew.is_follower, heard[-2:]) == ((), False, ["stops a", "stops b"])


SECTION = SectionFinished(job="j", time=1.0, section=2, sections=3, video="v", frames=9)


def worker_of(commands: str = "", **facts: Any) -> tuple[Any, list[str]]:
    """Return a worker over doubles, to whose job these commands were given, and what it does."""
    heard, worker = list[str](), object.__new__(Worker)
    store = SimpleNamespace(
        commands=lambda job: {*commands.split()}, transaction=nullcontext,
        enter=lambda job, state, **more: heard.append(f"{state} {more}"),
        is_removed=lambda job: "removed" in facts, is_out=lambda key: facts.get("out", False),
    )  # fmt: skip
    engine = SimpleNamespace(cancel=lambda job: heard.append(f"cancels {job}"), used_bytes=5)
    plain = {"_command": None, "gives_back": False, "_num_finished": 1, "trouble": "", "card": Seat("a", 24)}
    for name, value in {**plain, "_store": store, "_engine": engine, **facts}.items():
        setattr(worker, name, value)
    return worker, heard


def test_what_a_worker_makes_of_commands_and_failures(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    lines, job, end = (
        list[str](),
        job_of(id="j", folder=tmp_path),
        Cancelled(job="j", time=1.0, video="x/v", frames=9),
    )
    for commands in ("", "wait", "pause", "pause wait", "stop_after_section", "pause cancel", "change"):
        for before, gives_back, event in (
            (None, False, None), (None, False, SECTION), (None, True, None), ("pause", False, None),
            ("cancel", False, None),
        ):  # fmt: skip
            worker, heard = worker_of(commands, _command=before, gives_back=gives_back)
            said = worker._obey(job, event)
            lines.append(f"{commands} {before} {gives_back} {event and 'section'}: {said}, {heard}")
        for gives_back in (False, True):
            worker, heard = worker_of(commands, gives_back=gives_back)
            worker._pause(job, end)
            lines.append(f"  its end, {gives_back}: {heard}")
    for code in ("disk_full", "storage", "card_busy", "engine_died", "card_away", "internal"):
        failed = Failed(job="j", time=1.0, message="Why.", remedy="Do.", code=code)  # pyright: ignore
        for folder, facts in ((tmp_path, {}), (tmp_path / "gone", {}), (tmp_path, {"removed": True})):
            worker, _ = worker_of(_passes_on=lambda worker, job: "Another goes on.", **facts)
            trouble = worker._passing_trouble(replace(job, folder=folder), failed)
            lines.append(f"{code} {folder.name == 'gone'} {facts}: {trouble}")
        reason, away = worker._goes_elsewhere(job, failed), getattr(worker.card, "away", "")
        lines.append(f"  goes elsewhere: {reason!r}, away {away!r}")
    assert "\n".join(lines) == snapshot


def test_whether_a_card_serves_and_how_much_of_its_memory_is_used() -> None:
    card: Any = Seat("a", 24)
    for away, out, trouble, serves in (
        ("", False, "", True),
        ("Far.", False, "", False),
        ("", True, "", False),
        ("", False, "Dead.", False),
    ):
        card.away = away
        assert worker_of(card=card, out=out, trouble=trouble)[0].is_in_service is serves
    for used, machine, expected in ((7, "", 7), (0, "", 5), (0, "desk", 0)):
        card.used_bytes, card.machine = used, machine
        assert worker_of(card=card)[0].used_bytes == expected


def test_a_job_that_was_asked_to_end_gets_the_time_of_a_stop_and_any_other_engine_is_killed() -> None:
    for commands, command, waits in (
        ("", None, False), ("wait", None, False), ("cancel", None, True), ("pause", None, True),
        ("", "pause", True),
    ):  # fmt: skip
        worker, heard = worker_of(commands, _command=command, job="j", _orders=SimpleQueue())
        joins = list[float]()
        worker._thread = SimpleNamespace(
            join=joins.append, is_alive=lambda joins=joins: [*map(round, joins)] not in ([3, 0], [0, 0])
        )
        worker._engine.kill = lambda heard=heard: heard.append("kills")
        worker.stop(4.0)
        assert ([*map(round, joins)], heard) == ([3, 0] if waits else [0, 0], ["kills"] * (2 - waits))

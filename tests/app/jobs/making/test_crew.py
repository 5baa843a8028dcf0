"""Tests of which card gets which job and which lock, over stand-ins for cards and the store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.jobs.history import Retention
from app.jobs.job import Job
from app.jobs.making.crew import Crew
from diffusers_helper.errors import InputError
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


@pytest.mark.parametrize(
    ("size", "expected", "others_expected"),
    [(8, "bca", "bca"), (16, "ca", "ca"), (24, "a", "a"), (25, "a", "")],
)
def test_a_job_goes_to_the_cards_that_it_fits_the_smallest_first(
    size: int, expected: str, others_expected: str
) -> None:
    a, b, c = Seat("a", 24), Seat("b", 8), Seat("c", 16)
    crew, _ = crew_of(a, b, c)
    assert keys(crew.workers_for(needs(size))) == expected
    assert [crew.workers[index].key for index in crew.indices_for(needs(size))] == [*expected]
    b.job = "j"
    assert crew.indices_for(needs(size)) == [1]
    crew.missing = "Others are not there yet."
    assert keys(crew.workers_for(needs(size))) == others_expected
    crew.missing, a.machine = "", "desk"
    assert keys(crew.workers_for(needs(25))) == "c"  # the largest of this machine says why
    alone, _ = crew_of(b)
    assert keys(alone.workers_for(needs(25))) == "b"
    alone.missing = "Others are not there yet."
    assert keys(alone.workers_for(needs(25))) == ""


def test_a_job_on_which_an_engine_died_goes_to_another_card_that_is_in_service() -> None:
    a, b, c = Seat("a", 24), Seat("b", 8), Seat("c", 16)
    crew, store = crew_of(a, b, c)
    said = crew.passes_on(b, needs(8))
    assert (
        said
        == "The engine on card b (8 GB) gave up; card c (16 GB) or card a (24 GB) goes on with the video."
    )
    assert keys(crew.workers_for(needs(8))) == "ca"
    assert keys(crew.workers_for(needs(8, "another"))) == "bca"
    assert (b.failures, b.trouble) == (1, "")
    c.is_in_service = False
    assert crew.passes_on(b, needs(8, "another")).endswith("gave up; card a (24 GB) goes on with the video.")
    assert b.trouble == "Its engine died with one video after the other."
    a.is_in_service = False
    assert keys(crew.workers_for(needs(8))) == "bca"  # nobody else can
    assert crew.passes_on(b, needs(8, "third")) == ""
    crew.serve("b", leaves=True)
    assert (store.out, b.failures, b.trouble, b.gives_back) == ({"b": True}, 0, "", False)
    for leaves, now, job, gives_back in (
        (True, True, "j", True), (True, True, "", False), (True, False, "j", False),
        (False, True, "j", False),
    ):  # fmt: skip
        b.job = job
        crew.serve("b", leaves=leaves, now=now)
        assert (store.out["b"], b.gives_back) == (leaves, gives_back)
    with pytest.raises(InputError, match="no card 'x'; expected one of a, b, c"):
        crew.serve("x")


def test_a_job_says_for_which_card_it_waits_and_why() -> None:
    a, b, c = Seat("a", 24), Seat("b", 8), Seat("c", 16)
    crew, _ = crew_of(a, b, c)
    assert [crew.why_waiting(needs(size)) for size in (8, 16, 24, 25)] == [
        "", "Waits for card c (16 GB) or card a (24 GB): card b has 8 GB",
        "Waits for card a (24 GB): card b has 8 GB, card c has 16 GB", "",
    ]  # fmt: skip
    assert crew.why_waiting(needs(24, state="running")) == ""
    a.is_in_service = False
    assert crew.why_waiting(needs(24)) == "Waits for card a (24 GB), which is out of service"
    c.is_in_service = False
    assert (
        crew.why_waiting(needs(16)) == "Waits for card c (16 GB) or card a (24 GB), which are out of service"
    )
    assert crew.why_waiting(needs(8)) == ""
    crew.missing = "The other machines are not there yet."
    assert crew.why_waiting(needs(25)) == (
        "Waits for a card that it fits. The other machines are not there yet"
    )
    crew, _ = crew_of(Seat("d", 8, "desk"), Seat("e", 24))
    assert crew.why_waiting(needs(20)) == "Waits for card e (24 GB): card d lacks the model"
    crew.workers = ()
    assert crew.why_waiting(needs(20)) == ""


def test_free_cards_get_the_jobs_that_they_fit_in_turn_and_the_others_rest() -> None:
    a, b, c, d = Seat("a", 24), Seat("b", 8), Seat("c", 16), Seat("d", 4)
    crew, store = crew_of(a, b, c, d)
    c.job = "made"
    store.taken = {"d"}
    assert crew.lock_cards()
    store.waiting = [needs(16, "1"), needs(4, "2"), needs(4, "3")]
    crew._assign_jobs()
    assert [seat.made for seat in (a, b, c, d)] == [["1"], ["2"], [], []]
    assert [job.id for job in store.waiting] == ["3"]
    assert [seat.rests for seat in (a, b, c, d)] == [[], [], [], [True]]
    a.job = ""
    crew._assign_jobs()
    assert (a.made, a.rests) == (["1", "3"], [])
    a.job = ""
    crew._assign_jobs()
    assert a.rests == [False]


def test_a_card_is_locked_while_it_is_in_service_or_busy_and_there_is_work() -> None:
    a, b = Seat("a", 24), Seat("b", 8)
    crew, store = crew_of(a, b)
    store.taken = {"a", "b"}
    assert (crew.lock_cards(), crew.is_follower, store.held) == (False, True, set())
    store.taken = {"a"}
    assert (crew.lock_cards(), crew.is_follower, store.held) == (True, False, {"b"})
    b.is_in_service, b.job, store.taken = False, "j", {"b"}  # it is its own lock
    crew.lock_cards()
    assert store.held == {"a", "b"}
    assert crew.uses(b)
    b.job = ""
    crew.lock_cards()
    assert store.held == {"a"}
    store.work = False
    assert (crew.lock_cards(), crew.is_follower, store.held) == (False, False, set())
